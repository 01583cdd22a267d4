"""The dtypes that a checkpoint can hold, by the names of the safetensors format.

Known without torch: whoever only moves, lists or verifies checkpoints does not wait for its import.
"""

from collections.abc import Mapping

ITEM_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "U32": 4,
    "I32": 4,
    "U64": 8,
    "I64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F16": 2,
    "BF16": 2,
    "F32": 4,
    "F64": 8,
    "C64": 8,
}
"""Bytes of one element of every dtype; tree.py has what torch calls them."""
