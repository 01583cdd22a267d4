"""A directory of torch.distributed.checkpoint, written and read by one process.

Its `.metadata` is a pickle, which torch loads without a look. Here it is read by an unpickler that knows
nothing but what belongs in one, and what is no tensor travels as a tensor of bytes.
"""

import io
import pathlib
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint import CheckpointException, filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.serialization import _get_layout

from harness.stored.document import Flattened, FormError, foreign

_TEXT = "harness.json"
_KNOWN: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
    ("pathlib._local", "PosixPath"): pathlib.PurePosixPath,
}
_OF_METADATA = (
    "Metadata",
    "MetadataIndex",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)


class _Unpickler(pickle.Unpickler):
    """Reads a `.metadata` and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == metadata.__name__ and name in _OF_METADATA:
            return getattr(metadata, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        raise FormError(
            f"its .metadata needs {module}.{name}, which is none of torch's own descriptions: such a"
            " pickle can run code, and is not read"
        )


class _Reader(torch_dcp.FileSystemReader):
    """Reads by a `.metadata` that was looked at before."""

    def __init__(self, path: Path, known: Metadata) -> None:
        super().__init__(path)
        self._known = known

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._known


def write(flat: Flattened, at: Path) -> None:
    """Write a directory. Raises `FormError`."""
    text = torch.frombuffer(bytearray(flat.text.encode()), dtype=torch.uint8)
    tensors = {name: tensor.contiguous() for name, tensor in flat.tensors.items()}
    with _told(at):
        torch_dcp.save({**tensors, _TEXT: text}, checkpoint_id=at, no_dist=True)


def read(path: Path) -> Flattened:
    """What a directory that `write` made holds. Raises `FormError`."""
    with _told(path):
        known = _metadata(path)
        if _TEXT not in known.state_dict_metadata:
            raise foreign(str(path), map(str, known.state_dict_metadata))
        tensors: dict[str, Any] = {}
        for name, entry in known.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise FormError(f"{path} holds {name!r}, which is no tensor but a pickle")
            tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
        torch_dcp.load(tensors, storage_reader=_Reader(path, known), no_dist=True)
        text = tensors.pop(_TEXT)
        return Flattened(tensors, bytes(text.numpy().data).decode())


def _metadata(path: Path) -> Metadata:
    found = _Unpickler(io.BytesIO((path / ".metadata").read_bytes())).load()
    if not isinstance(found, Metadata):
        raise FormError("its .metadata describes no checkpoint")
    for info in (found.storage_data or {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise FormError(f"it keeps data in {info.relative_path!r}, outside of itself")
    return found


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever goes wrong in this block is told of `path`, as `FormError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is but one process is meant
        try:
            yield
        except FormError as error:
            raise error if str(path) in str(error) else FormError(f"{path}: {error}") from None
        except FileNotFoundError as error:
            raise FormError(
                f"{path} is no directory of torch.distributed.checkpoint: {error}"
            ) from error
        # A bad checkpoint raises CheckpointException, which is no `Exception`.
        except (CheckpointException, Exception) as error:
            raise FormError(f"{path} cannot be read or written: {error}") from error
