"""Which physical effects a GPU's predictions have: each can be left out, to see what it is worth.

What an effect is and how it is priced stands where it acts: ``gpu`` (overheads), ``cost.resources`` (the union),
``cost.roofline`` (tile times), ``simulate.engine`` (prefetch, events, queues).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

EFFECTS = MappingProxyType(
    {
        "union": "one block's registers, shared memory and threads for all bodies of a megakernel",
        "prefetch": "weights loaded before a tile's events, as far as pages are free; a cut loses them",
        "stage_latency": "signal and wait between dependent tiles of a megakernel",
        "waves": "tiles are whole, so a last wave leaves lanes idle",
        "few_tiles": "a tile takes no more bandwidth than its bytes in flight allow (Little's law)",
        "shared_bandwidth": "tiles that load at once share the device's DRAM bandwidth",
        "l2": "inputs that fit into L2 are read from there",
        "launch_gaps": "the gap of a launch, of a megakernel and of each conventional kernel",
        "ramp": "from a kernel's start until its first tile has inputs",
        "counter_reset": "event counters zeroed before a megakernel, a node of the graph more",
        "body_quality": "bodies reach a share of peak, and CUDA cores spend instructions on more than multiply-adds",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """True: the effect is there, see EFFECTS.

    ``scheduler_sms``: SMs that run no tiles but hand them out, as MPK's schedulers do. ``build``: how a megakernel's
    bodies are built, one of the ladder's builds; "": the best for each region.
    """

    union: bool = True
    prefetch: bool = True
    stage_latency: bool = True
    waves: bool = True
    few_tiles: bool = True
    shared_bandwidth: bool = True
    l2: bool = True
    launch_gaps: bool = True
    ramp: bool = True
    counter_reset: bool = True
    body_quality: bool = True
    scheduler_sms: int = 0
    build: str = ""

    def without(self, name: str) -> Effects:
        """The same with one effect left out."""
        if name not in EFFECTS:
            raise ValueError(f"no effect is called {name!r:.40}; there are {', '.join(EFFECTS)}")
        left_out: dict[str, Any] = {name: False}
        return replace(self, **left_out)


ALL = Effects()
