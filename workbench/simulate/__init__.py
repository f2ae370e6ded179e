"""Integer time of one region: tiles in per-lane queues, events between them, and where the nanoseconds went.

    TileQueue, Mechanism ─► engine ─► Run ─► critical_path   causes that sum to the makespan, to the nanosecond
                              │         └──► timeline        a table of spans; a Chrome / Perfetto trace
                              └─ kernels (numba; imported at the first pass, so importing this package is cheap)

`engine.Mechanism` defines a pass, once. `reference` is the same definition as a slow event-driven program, for tests.
A lane is one worker: an SM of a GPU, a pinned thread on a CPU. All times are whole nanoseconds from the region's start.
"""

from workbench.simulate.critical_path import CAUSES, Segment, causes, critical_segments, critical_tiles
from workbench.simulate.engine import (
    Mechanism,
    Run,
    TileQueue,
    all_makespans,
    check_tile_queue,
    makespan,
    prefix_makespans,
    simulate,
)
from workbench.simulate.timeline import SPAN_COLUMNS, chrome_trace, spans

__all__ = [
    "CAUSES",
    "SPAN_COLUMNS",
    "Mechanism",
    "Run",
    "Segment",
    "TileQueue",
    "all_makespans",
    "causes",
    "check_tile_queue",
    "chrome_trace",
    "critical_segments",
    "critical_tiles",
    "makespan",
    "prefix_makespans",
    "simulate",
    "spans",
]
