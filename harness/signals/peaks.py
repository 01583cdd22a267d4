"""What a device can do at most: operations a second of dense matrix products, by the makers' own figures.

Figures with sparsity, twice as large, are left out: no training reaches for it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_T = 1e12


@dataclass(frozen=True, slots=True)
class Peak:
    """Of one device."""

    flops: float
    """A second."""
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device, told by the name that its driver gives it."""

    pattern: str
    source: str
    tflops: Mapping[str, float]
    """By dtype; `tf32` is what float32 matrices are multiplied in where that is allowed."""


def _nvidia(
    pattern: str, source: str, fp32: float, tf32: float, bf16: float, fp8: float | None = None
) -> Device:
    tflops = {"float32": fp32, "tf32": tf32, "bfloat16": bf16, "float16": bf16}
    return Device(pattern, source, tflops if fp8 is None else {**tflops, "float8": fp8})


DEVICES: Sequence[Device] = (
    # The first that matches counts: variants stand before the plain name.
    _nvidia(r"GB200\b", "NVIDIA GB200 NVL72 data sheet", 80, 1250, 2500, 5000),
    _nvidia(r"B200\b", "NVIDIA HGX B200 data sheet", 75, 1125, 2250, 4500),
    _nvidia(r"H200 NVL\b", "NVIDIA H200 data sheet", 60, 417.5, 835.5, 1670.5),
    _nvidia(r"(H200|GH200)\b", "NVIDIA H200 data sheet", 67, 494.5, 989.5, 1979),
    _nvidia(r"H100 NVL\b", "NVIDIA H100 data sheet", 60, 417.5, 835.5, 1670.5),
    _nvidia(r"H100 PCIe\b", "NVIDIA H100 PCIe product brief", 51, 378, 756, 1513),
    _nvidia(r"H100\b", "NVIDIA H100 data sheet", 67, 494.5, 989.5, 1979),
    _nvidia(r"A100\b", "NVIDIA A100 data sheet", 19.5, 156, 312),
    _nvidia(r"L40S\b", "NVIDIA L40S data sheet", 91.6, 183, 362.05, 733),
    _nvidia(r"L4\b", "NVIDIA L4 data sheet", 30.3, 60, 121, 242.5),
    Device(r"V100-PCIE\b", "NVIDIA V100 data sheet (PCIe)", {"float32": 14, "float16": 112}),
    Device(r"V100\b", "NVIDIA V100 data sheet (SXM2)", {"float32": 15.7, "float16": 125}),
    Device(r"\bT4\b", "NVIDIA T4 data sheet", {"float32": 8.1, "float16": 65}),
    Device(
        r"MI3(00X|25X)\b",
        "AMD Instinct MI300X and MI325X data sheets",
        {"float32": 163.4, "tf32": 653.7, "bfloat16": 1307.4, "float16": 1307.4, "float8": 2614.9},
    ),
    Device(
        r"MI250X\b",
        "AMD Instinct MI250X data sheet, of one of its two dies",
        {"float32": 47.85, "bfloat16": 191.5, "float16": 191.5},
    ),
)


def peak(device_name: str, dtype: str) -> Peak | None:
    """The peak of the device that its driver calls `device_name`; None where the table has nothing.

    Of a part of a device (MIG) it has nothing, whatever the whole can do.
    """
    if re.search(r"\bMIG\b", device_name):
        return None
    for device in DEVICES:
        if re.search(device.pattern, device_name):
            tflops = device.tflops.get(dtype)
            return None if tflops is None else Peak(tflops * _T, device.source)
    return None
