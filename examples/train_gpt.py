"""Train a byte-level GPT on text. The lines that name `job` are all that the harness asks for.

harness run --nproc-per-node 2 examples/train_gpt.py --preset demo
torchrun    --nproc-per-node 2 examples/train_gpt.py --preset demo
"""

import argparse
import math
from contextlib import nullcontext

import torch
from gpt import GPT, PRESETS, Preset
from text import Windows, load
from torch import Tensor
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.utils.data import DataLoader

import harness


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="demo",
        help="size of everything (default: %(default)s)",
    )
    parser.add_argument(
        "--data", help="file, folder or fsspec URL of text (default: Python's standard library)"
    )
    parser.add_argument("--steps", type=int, help="optimizer steps (default: the preset's)")
    parser.add_argument(
        "--workers", type=int, default=0, help="loader processes a rank (default: %(default)s)"
    )
    parser.add_argument(
        "--compress",
        choices=("none", "bf16"),
        default="none",
        help="what gradients are sent as; none is their own type (default: %(default)s)",
    )
    parser.add_argument(
        "--count-flops", action="store_true", help="count what a step computes, for the MFU"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of everything random (default: %(default)s)"
    )
    return parser.parse_args()


def learning_rate(preset: Preset, steps: int, step: int) -> float:
    """Share of the peak rate: up in a line, down along half a cosine to a tenth."""
    if step < preset.warmup_steps:
        return (step + 1) / preset.warmup_steps
    progress = (step - preset.warmup_steps) / max(1, steps - preset.warmup_steps)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


@torch.no_grad()
def validation_loss(model: torch.nn.Module, held_out: Windows, job: harness.Job) -> float:
    """Mean loss in nats a byte over some 64 windows all over the held-out text, shared by the ranks."""
    model.eval()
    total = torch.zeros(2, device=job.device)
    windows = range(0, len(held_out), max(1, len(held_out) // 64))
    for index in windows[job.rank :: job.world_size]:
        inputs, targets = held_out[index]
        loss = model(inputs[None].to(job.device), targets[None].to(job.device))
        total += torch.stack((loss, torch.ones_like(loss)))
    dist.all_reduce(total)
    model.train()
    return float(total[0] / total[1])


def send_as_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Halve what gradients weigh on the way; torch refuses its own hook by name where CUDA is missing."""
    return bf16_compress_hook(group, bucket)


def main() -> None:
    options = arguments()
    preset = PRESETS[options.preset]
    steps = preset.steps if options.steps is None else options.steps

    job = harness.join(seed=options.seed)
    train, held_out = load(options.data, preset.context)
    sampler = harness.ResumableSampler(
        len(train), preset.batch_size, micro_batches=preset.micro_batches, seed=job.seed
    )
    loader: DataLoader[list[Tensor]] = DataLoader(
        harness.SeededItems(train, job.seed), batch_sampler=sampler, num_workers=options.workers
    )
    model = job.ddp(GPT(preset).to(job.device))
    if options.compress == "bf16":
        model.register_comm_hook(None, send_as_bf16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(preset, steps, step)
    )
    job.protect(model=model, optimizer=optimizer, schedule=schedule, data=sampler)
    batches = job.batches(loader)
    half = job.device.type == "cuda"
    if options.count_flops:
        blank = torch.zeros(1, preset.context, dtype=torch.long, device=job.device)
        job.count_flops(lambda: model(blank, blank), tokens=blank.numel())

    for step in job.steps(steps):
        for micro_batch in range(preset.micro_batches):
            last = micro_batch == preset.micro_batches - 1
            inputs, targets = (part.to(job.device) for part in next(batches))
            with (
                nullcontext() if last else model.no_sync(),
                torch.autocast(job.device.type, torch.bfloat16, enabled=half),
            ):
                loss = model(inputs, targets)
                (loss / preset.micro_batches).backward()
            job.observe(loss=loss, tokens=inputs.numel())
        job.clip(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % preset.evaluate_every == 0 or step == steps:
            with job.evaluating() as evaluation:
                evaluation.loss = validation_loss(model.module, held_out, job)
            if job.rank == 0:
                print(f"step {step:5d}  validation loss {evaluation.loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
