"""A byte-level GPT and the sizes that it comes in. Plain PyTorch; the harness is not known here."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Preset:
    """A model, a batch and a schedule that go together. A batch is counted over all ranks."""

    layers: int
    width: int
    heads: int
    context: int
    batch_size: int
    micro_batches: int
    steps: int
    warmup_steps: int
    learning_rate: float
    evaluate_every: int
    vocabulary: int = 256
    dropout: float = 0.1


PRESETS = {
    # Seconds on one core; the batch divides by 1, 2, 3 and 4 ranks.
    "tiny": Preset(2, 32, 2, 32, 24, 2, 40, 5, 3e-3, 10),
    # A minute on two cores: validation loss from 5.5 to under 2.5 nats a byte.
    "demo": Preset(4, 128, 4, 128, 32, 1, 160, 20, 4e-3, 20),
    # Minutes on one GPU.
    "small": Preset(6, 384, 6, 256, 64, 1, 2_000, 100, 1e-3, 100),
    # GPT-2's 124 M parameters. Bytes use the first 256 rows of an embedding of GPT-2's size, so
    # that state and arithmetic are those of the model that people know.
    "gpt2": Preset(12, 768, 12, 1_024, 256, 4, 10_000, 500, 6e-4, 250, vocabulary=50_304),
}


class Attention(nn.Module):
    """Causal self-attention over several heads.

    Without dropout of its own: torch would leave its fused kernel, and a step on CPU take half as
    long again.
    """

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.heads = preset.heads
        self.inputs = nn.Linear(preset.width, 3 * preset.width)
        self.output = nn.Linear(preset.width, preset.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → (batch, time, width)."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.inputs(x).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]  # nn.Module calls are untyped


class Block(nn.Module):
    """Attention and a two-layer network, each behind its norm and beside a residual path."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(preset.width)
        self.attention = Attention(preset)
        self.network_norm = nn.LayerNorm(preset.width)
        self.network = nn.Sequential(
            nn.Linear(preset.width, 4 * preset.width),
            nn.GELU(),
            nn.Linear(4 * preset.width, preset.width),
        )
        self.dropout = nn.Dropout(preset.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → (batch, time, width)."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.network(self.network_norm(x)))  # type: ignore[no-any-return]  # as above


class GPT(nn.Module):
    """Bytes in, the loss of predicting each next byte out."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.token = nn.Embedding(preset.vocabulary, preset.width)
        self.position = nn.Embedding(preset.context, preset.width)
        self.blocks = nn.ModuleList(Block(preset) for _ in range(preset.layers))
        self.norm = nn.LayerNorm(preset.width)
        self.head = nn.Linear(preset.width, preset.vocabulary, bias=False)
        self.apply(self._initialise)
        for block in self.blocks:  # the residual path adds 2 × layers terms
            for layer in (block.attention.output, block.network[2]):  # type: ignore[union-attr, index]  # ModuleList holds Blocks
                nn.init.normal_(layer.weight, std=0.02 / (2 * preset.layers) ** 0.5)  # type: ignore[union-attr, arg-type]  # as above
        self.head.weight = self.token.weight

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats a byte; both arguments are (batch, time) int64."""
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.token(inputs) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
