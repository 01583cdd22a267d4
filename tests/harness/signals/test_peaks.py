import pytest

from harness.signals.peaks import DEVICES, Peak, peak


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "float8", 1979),
        ("NVIDIA GH200 480GB", "bfloat16", 989.5),
        ("NVIDIA B200", "bfloat16", 2250),
        ("NVIDIA GB200", "bfloat16", 2500),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA L4", "bfloat16", 121),
        ("Tesla T4", "float16", 65),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(name: str, dtype: str, tflops: float):
    found = peak(name, dtype)
    assert found is not None
    assert found.flops == tflops * 1e12
    assert found.source


def test_what_the_table_does_not_have_has_no_peak():
    assert peak("NVIDIA L400", "bfloat16") is None
    assert peak("", "float32") is None
    assert peak("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16") is None
    assert peak("Tesla V100-PCIE-16GB", "float16") == Peak(112e12, "NVIDIA V100 data sheet (PCIe)")
    assert peak("Tesla V100-SXM2-32GB", "bfloat16") is None
    assert peak("Tesla V100-SXM2-32GB", "float16") == Peak(125e12, "NVIDIA V100 data sheet (SXM2)")


def test_smaller_numbers_are_no_slower():
    order = ("float32", "tf32", "bfloat16", "float8")
    for device in DEVICES:
        tflops = [device.tflops[dtype] for dtype in order if dtype in device.tflops]
        assert tflops == sorted(tflops), device
