"""Integer time of one region: tiles in queues, events between them, and where the nanoseconds went.

    TileQueue, Mechanism ─┬► engine    queues bound to lanes; one pass         ─┬► Run ─► critical_path  causes that sum
                          ├► dynamic   a tile goes to the lane that frees first │   │     to the makespan exactly
                          └► shared    loads in bytes share one bandwidth      ─┘   └───► timeline  a table of spans; a
                                                                                          Chrome / Perfetto trace
                            items      every region of a level at once, for a search
                            replicate  one region many times over, with other times each time

`engine.Mechanism` defines a pass, once; `simulate_dynamic` and `SharedBandwidth` define how the other two differ. All
compiled loops are in `kernels` (numba; imported at the first run, so importing this package is cheap). `reference` is
the first definition again as a slow event-driven program; those of the others are in `tests/oracles`. A lane is one
worker: an SM of a GPU, a pinned thread on a CPU. All times are whole nanoseconds from the region's start.
"""

from workbench.simulate.critical_path import (
    CAUSES,
    Path,
    Segment,
    causes,
    critical_segments,
    critical_tiles,
    path_of,
)
from workbench.simulate.dynamic import simulate_dynamic
from workbench.simulate.engine import (
    Exit,
    Mechanism,
    Run,
    all_makespans,
    chain_ns,
    makespan,
    prefix_makespans,
    simulate,
)
from workbench.simulate.items import Exits, ItemRegions, follow_ns, item_regions
from workbench.simulate.replicate import replicate, scaled
from workbench.simulate.shared import (
    SharedBandwidth,
    SharingDifference,
    TileLoads,
    fair_share_queue,
    sharing_difference,
    simulate_shared,
)
from workbench.simulate.tile_queue import TileQueue, check_tile_queue
from workbench.simulate.timeline import SPAN_COLUMNS, chrome_trace, spans

__all__ = [
    "CAUSES",
    "SPAN_COLUMNS",
    "Exit",
    "Exits",
    "ItemRegions",
    "Mechanism",
    "Path",
    "Run",
    "Segment",
    "SharedBandwidth",
    "SharingDifference",
    "TileLoads",
    "TileQueue",
    "all_makespans",
    "causes",
    "chain_ns",
    "check_tile_queue",
    "chrome_trace",
    "critical_segments",
    "critical_tiles",
    "fair_share_queue",
    "follow_ns",
    "item_regions",
    "makespan",
    "path_of",
    "prefix_makespans",
    "replicate",
    "scaled",
    "sharing_difference",
    "simulate",
    "simulate_dynamic",
    "simulate_shared",
    "spans",
]
