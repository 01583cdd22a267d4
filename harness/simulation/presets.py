"""Jobs whose figures were published, with their sources. What no source gives is called illustrative."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.events import Cause
from harness.simulation.trouble import Blame

_LLAMA_3 = "A. Grattafiori et al., The Llama 3 herd of models, arXiv 2407.21783, §3.3.4 and Table 5"


@dataclass(frozen=True, slots=True)
class Preset:
    """A job."""

    source: str
    mtbf: str
    save: str
    restart: str
    days: float
    gpus: int
    intervals: str
    blames: Sequence[Blame]


LLAMA_3_BLAMES = (
    Blame("faulty GPU", Cause.SIGNAL, 148),
    Blame("GPU HBM3 memory", Cause.SIGNAL, 72),
    Blame("software bug", Cause.EXCEPTION, 54),
    Blame("network switch or cable", Cause.HANG, 35),
    Blame("unplanned host maintenance", Cause.PREEMPTION, 32),
    Blame("GPU SRAM memory", Cause.SIGNAL, 19),
    Blame("GPU system processor", Cause.SIGNAL, 17),
    Blame("NIC", Cause.HANG, 7),
    Blame("NCCL watchdog time-out", Cause.HANG, 7),
    Blame("silent data corruption", Cause.CORRUPTION, 6),
    Blame("GPU thermal interface or sensor", Cause.SIGNAL, 6),
    Blame("SSD", Cause.NODE_LOSS, 3),
    Blame("power supply", Cause.NODE_LOSS, 3),
    Blame("server chassis", Cause.NODE_LOSS, 2),
    Blame("IO expansion board", Cause.NODE_LOSS, 2),
    Blame("dependency", Cause.EXCEPTION, 2),
    Blame("CPU", Cause.NODE_LOSS, 2),
    Blame("system memory", Cause.NODE_LOSS, 2),
)
"""Unexpected interruptions of 54 days by their cause: 419. The counts, for the printed shares do not add up."""

PRESETS: Mapping[str, Preset] = {
    "llama3": Preset(
        source=f"{_LLAMA_3}; save 4 GB per GPU at 2 TB/s, §3.3.1; the restart is illustrative",
        mtbf="3.1h",
        save="33s",
        restart="10min",
        days=54,
        gpus=16_384,
        intervals="2,4,6,8,10,12,14,16,18,20,24,32,48,64,96,128min",
        blames=LLAMA_3_BLAMES,
    ),
    "llama3-100k": Preset(
        source=f"{_LLAMA_3}; the same rate per GPU at 100,000 GPUs; save and restart as there",
        mtbf="0.508h",
        save="33s",
        restart="10min",
        days=54,
        gpus=100_000,
        intervals="1,1.5,2,2.5,3,3.5,4,4.5,5,5.5,6,6.5,7,8,9,10,12,16,24,32min",
        blames=LLAMA_3_BLAMES,
    ),
}
