"""Failure rates that were published, with their sources, in the words of the flags of `harness plan`.

What a source does not give is not in here: the plan then says UNKNOWN and which flag would tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.simulation.presets import PRESETS as SIMULATED

_RSC = (
    "A. Kokolis et al., Revisiting reliability in large-scale machine learning research clusters,"
    " arXiv 2410.21680"
)
_LLAMA_3 = SIMULATED["llama3"]


@dataclass(frozen=True, slots=True)
class Known:
    """A job or a cluster."""

    source: str
    gpus: str
    mtbf_per_gpu: str = ""
    mtbf_per_node: str = ""
    save: str = ""
    restart: str = ""


PRESETS: Mapping[str, Known] = {
    "llama3": Known(
        source=f"{_LLAMA_3.source}; 419 failures in 54 days",
        gpus=str(_LLAMA_3.gpus),
        mtbf_per_gpu="50677h",
        save=_LLAMA_3.save,
        restart=_LLAMA_3.restart,
    ),
    "100k": Known(
        source=SIMULATED["llama3-100k"].source,
        gpus=str(SIMULATED["llama3-100k"].gpus),
        mtbf_per_gpu="50677h",
        save=_LLAMA_3.save,
        restart=_LLAMA_3.restart,
    ),
    "rsc-1": Known(
        source=f"{_RSC}: 6.50 failures per 1,000 node-days; it gives no save and no restart",
        gpus="1024,4096,16384",
        mtbf_per_node="153.846d",
    ),
    "rsc-2": Known(
        source=f"{_RSC}: 2.34 failures per 1,000 node-days; it gives no save and no restart",
        gpus="1024,4096,8192",
        mtbf_per_node="427.35d",
    ),
    "8-gpu-node": Known(
        source="one node at Llama 3's rate per GPU (arXiv 2407.21783); save and restart are yours",
        gpus="8",
        mtbf_per_gpu="50677h",
    ),
}
