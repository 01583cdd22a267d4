"""The forms in which a checkpoint leaves, and comes: safetensors, `torch.save`, a DCP directory.

Nothing that a file says is executed. A form appears under its name when it is whole.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, assert_never

import msgspec
import safetensors
import torch
from safetensors.torch import save_file

from harness.replace import sync
from harness.stored import dcp
from harness.stored.document import (
    Document,
    Flattened,
    FormError,
    about_in,
    checked,
    flattened,
    foreign,
    unflattened,
)

_KEY = "harness"
"""Under which each form holds what is no tensor."""


class Form(StrEnum):
    """How a file is made, told by its name."""

    SAFETENSORS = ".safetensors"
    TORCH = ".pt"
    DCP = "a directory"

    @classmethod
    def of(cls, path: Path) -> "Form":
        """The form that `path` asks for. Raises `FormError`."""
        if path.suffix in (".pt", ".pth"):
            return cls.TORCH
        if path.suffix == ".safetensors":
            return cls.SAFETENSORS
        if path.is_dir() or not path.suffix:
            return cls.DCP
        raise FormError(
            f"{path} has an unknown ending {path.suffix!r}; known: .safetensors, .pt, .pth, and none"
            " for a directory of torch.distributed.checkpoint"
        )


def write(document: Document, path: Path) -> None:
    """Write `document` to `path`, which is not there yet. Raises `FormError`."""
    form = Form.of(path)
    if path.exists():
        raise FormError(f"{path} exists already: name another file, or move it away")
    if not path.parent.is_dir():
        raise FormError(f"{path.parent} is no folder of this machine: make it, or name another one")
    match form:
        case Form.SAFETENSORS:
            _appear(path, lambda at: _to_safetensors(flattened(document), at))
        case Form.TORCH:
            _appear(path, lambda at: _to_torch(document, at))
        case Form.DCP:
            _appear(path, lambda at: dcp.write(flattened(document), at))
        case _:
            assert_never(form)


def read(path: Path) -> Document:
    """The checkpoint in `path`. Raises `FormError` if that is none, `OSError` if it is not there."""
    path.stat()
    return checked(_read(path), str(path))


def _read(path: Path) -> Document:
    form = Form.of(path)
    match form:
        case Form.SAFETENSORS:
            return unflattened(_from_safetensors(path), str(path))
        case Form.TORCH:
            return _from_torch(path)
        case Form.DCP:
            return unflattened(dcp.read(path), str(path))
        case _:
            assert_never(form)


def _appear(path: Path, make: Callable[[Path], None]) -> None:
    """Let `make` write beside `path`; what is whole and durable gets that name."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _told_of(path):
            make(fresh)
        for file in [fresh, *fresh.rglob("*")] if fresh.is_dir() else [fresh]:
            sync(file)
        fresh.rename(path)
        sync(path.absolute().parent)
    finally:
        with suppress(OSError):  # what stood in the way of writing is the news
            shutil.rmtree(fresh) if fresh.is_dir() else fresh.unlink()


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """What the libraries raise of a file that they cannot write is told of `path`, as `FormError`."""
    try:
        yield
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise FormError(f"{path} cannot be written: {error}") from error


# ── safetensors ─────────────────────────────────────────────────────────────────────────────────


def _to_safetensors(flat: Flattened, at: Path) -> None:
    # The library refuses tensors that lie across one another, or not in order.
    tensors = {name: tensor.contiguous() for name, tensor in flat.tensors.items()}
    save_file(tensors, at, {"format": "pt", _KEY: flat.text})


def _from_safetensors(path: Path) -> Flattened:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names, text = list(file.keys()), (file.metadata() or {}).get(_KEY)
            if text is None:
                raise foreign(str(path), names)
            return Flattened({name: file.get_tensor(name) for name in names}, text)
    except safetensors.SafetensorError as error:
        raise FormError(f"{path} cannot be read as safetensors: {error}") from error


# ── torch.save ──────────────────────────────────────────────────────────────────────────────────


def _to_torch(document: Document, at: Path) -> None:
    about = json.dumps(msgspec.to_builtins(document.about))
    torch.save({_KEY: about, "shared": document.shared, "own": list(document.own)}, at)


def _from_torch(path: Path) -> Document:
    held = _loaded(path)
    if not isinstance(held, dict) or _KEY not in held:
        raise foreign(str(path), map(str, held) if isinstance(held, dict) else [])
    own = held.get("own")
    if not isinstance(own, list) or "shared" not in held:
        raise FormError(f"{path} is no whole checkpoint: it lacks 'shared' or 'own'")
    try:
        fields = json.loads(held[_KEY])
    except (TypeError, ValueError, RecursionError) as error:
        raise FormError(f"{path} is no whole checkpoint: {error}") from error
    return Document(about_in(fields, len(own), str(path)), held["shared"], own)


def _loaded(path: Path) -> Any:
    """What torch.load makes of a file without executing anything in it. Raises `FormError`."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"it needs {wanted[1]}, and" if wanted else "it is damaged, or"
        raise FormError(
            f"{path} is not read: {what} only tensors and plain containers are taken from a pickle,"
            " for anything else in one can run code"
        ) from error
    except Exception as error:  # a damaged file makes torch raise whatever it stumbles over
        why = f"{type(error).__name__}: {error}"
        raise FormError(f"{path} cannot be read by torch.load: {why}") from error
