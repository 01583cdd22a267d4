"""Text to learn from: the source of Python's own standard library, or whatever `--data` names."""

import sysconfig
import zlib
from pathlib import Path

import fsspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

HELD_OUT = 10
"""One file in so many is kept for validation."""


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Non-overlapping windows of `context` bytes, each with the bytes that follow by one."""

    def __init__(self, text: NDArray[np.uint8], context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (context,) int64 each."""
        start = index * self.context
        window = torch.from_numpy(self.text[start : start + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


def load(data: str | None, context: int) -> tuple[Windows, Windows]:
    """Windows to train on and windows of held-out files.

    `data` is a file, a folder or an fsspec URL of either; None is the standard library's source,
    several MB of real text that every machine has. Raises `ValueError` where there is too little.
    """
    files = _standard_library() if data is None else _files(data)
    learnt = [content for name, content in files if zlib.crc32(name.encode()) % HELD_OUT]
    kept = [content for name, content in files if zlib.crc32(name.encode()) % HELD_OUT == 0]
    if not learnt or not kept:  # one file, or few: hold out the end of what there is
        whole = b"".join(learnt + kept)
        cut = len(whole) * (HELD_OUT - 1) // HELD_OUT
        learnt, kept = [whole[:cut]], [whole[cut:]]
    train, held_out = (np.frombuffer(b"".join(part), dtype=np.uint8) for part in (learnt, kept))
    if min(len(train), len(held_out)) <= context:
        raise ValueError(
            f"{data or 'the standard library'} has too little text for {context} bytes of context"
        )
    return Windows(train, context), Windows(held_out, context)


def _standard_library() -> list[tuple[str, bytes]]:
    folder = Path(sysconfig.get_path("stdlib"))
    return [(file.name, file.read_bytes()) for file in sorted(folder.glob("*.py"))]


def _files(data: str) -> list[tuple[str, bytes]]:
    filesystem, path = fsspec.core.url_to_fs(data)
    names = sorted(filesystem.find(path))
    if not names:
        raise ValueError(f"no file at {data}")
    return [(name.removeprefix(path), filesystem.cat_file(name)) for name in names]
