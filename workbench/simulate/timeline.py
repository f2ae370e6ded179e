"""A simulated run as a table of spans, and as a trace that Perfetto and chrome://tracing open beside a measured one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import GraphError
from workbench.simulate.engine import Run

if TYPE_CHECKING:
    import pandas as pd

SPAN_COLUMNS = (
    "lane", "op", "op_name", "tile", "begin_ns", "end_ns", "load_start_ns", "load_end_ns", "compute_start_ns",
)  # fmt: skip


def spans(run: Run, op_names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row a tile in id order, with SPAN_COLUMNS; times in ns from the region's start, intervals half-open.

    [begin_ns, end_ns) is the tile's hold on its lane, from its inputs' load to its result; those of one lane never
    overlap. [load_start_ns, load_end_ns) is its weights' load, which prefetch may put before begin_ns.
    `op_names`, one an operator of the queue, default to "op 0", "op 1", …
    """
    import pandas as pd

    names, queue = _names(run, op_names), run.queue
    op = queue.op[run.tiles]
    columns = {
        "lane": run.lane,
        "op": op,
        "op_name": pd.array(names, dtype="str").take(op),
        "tile": range(run.first_tile, run.first_tile + len(op)),
        "begin_ns": run.begin_ns,
        "end_ns": run.end_ns,
        "load_start_ns": run.load_start_ns,
        "load_end_ns": run.load_end_ns,
        "compute_start_ns": run.compute_start_ns,
    }
    return pd.DataFrame(columns, columns=list(SPAN_COLUMNS))


def _names(run: Run, op_names: Sequence[str] | None) -> list[str]:
    ops = run.queue.ops
    names = [f"op {i}" for i in range(ops)] if op_names is None else list(op_names)
    if len(names) != ops:
        raise GraphError(f"{len(names)} operator names for a queue of {ops} operators; give one each")
    return names


def chrome_trace(run: Run, op_names: Sequence[str] | None = None) -> dict[str, Any]:
    """The run in Chrome's trace event format, for `json.dump`; one complete event ("X") a slice.

    Two threads a lane: tid 2 * lane holds the tiles, each with its compute nested in it, and tid 2 * lane + 1 the loads
    of weights. ``ts`` and ``dur`` are in µs, as the format asks; ns are exact in ``args``. Format: "Trace Event
    Format", Google, 2016.
    """
    names = _names(run, op_names)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"ops {run.start_op}..{run.stop_op - 1}"}}
    ]
    for lane in np.unique(run.lane).tolist():
        for offset, name in ((0, f"lane {lane}"), (1, f"lane {lane} weights")):
            tid = 2 * lane + offset
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}})
            events.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": tid, "args": {"sort_index": tid}})
    collecting = gc.isenabled()
    gc.disable()  # it would look through the slices again and again, half of the time, and none of them is a cycle
    try:
        events += _slices(run, names)
    finally:
        if collecting:
            gc.enable()
    return {"displayTimeUnit": "ns", "traceEvents": events, "otherData": {"makespan_ns": run.makespan_ns}}


def _slices(run: Run, names: list[str]) -> list[dict[str, Any]]:
    """Written out, not a function a slice: there are 600,000 of them for a region of 200,000 tiles."""
    events: list[dict[str, Any]] = []
    begin, end, compute, load, loaded = (
        times.tolist() for times in (run.begin_ns, run.end_ns, run.compute_start_ns, run.load_start_ns, run.load_end_ns)
    )
    lanes, ops = run.lane.tolist(), run.queue.op[run.tiles].tolist()
    for t, (lane, op, b, e, c, x, y) in enumerate(
        zip(lanes, ops, begin, end, compute, load, loaded, strict=True), run.first_tile
    ):
        events.append(
            {
                "name": names[op], "cat": "tile", "ph": "X", "pid": 0, "tid": 2 * lane, "ts": b / 1e3,
                "dur": (e - b) / 1e3, "args": {"tile": t, "op": op, "begin_ns": b, "end_ns": e},
            }
        )  # fmt: skip
        events.append(
            {
                "name": "compute", "cat": "compute", "ph": "X", "pid": 0, "tid": 2 * lane, "ts": c / 1e3,
                "dur": (e - c) / 1e3, "args": {"tile": t},
            }
        )  # fmt: skip
        if x < y:
            events.append(
                {
                    "name": names[op], "cat": "weights", "ph": "X", "pid": 0, "tid": 2 * lane + 1, "ts": x / 1e3,
                    "dur": (y - x) / 1e3, "args": {"tile": t, "load_start_ns": x, "load_end_ns": y},
                }
            )  # fmt: skip
    return events
