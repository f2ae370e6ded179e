"""A simulated run as a table of spans, and as a trace that Perfetto and chrome://tracing open beside a measured one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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

    queue = run.queue
    names = [f"op {i}" for i in range(queue.ops)] if op_names is None else list(op_names)
    if len(names) != queue.ops:
        raise GraphError(f"{len(names)} operator names for a queue of {queue.ops} operators; give one each")
    op = queue.op[run.tiles]
    columns = {
        "lane": queue.lane[run.tiles],
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


def chrome_trace(run: Run, op_names: Sequence[str] | None = None) -> dict[str, Any]:
    """The run in Chrome's trace event format, for `json.dump`; one complete event ("X") a slice.

    Two threads a lane: tid 2 * lane holds the tiles, each with its compute nested in it, and tid 2 * lane + 1 the loads
    of weights. ``ts`` and ``dur`` are in µs, as the format asks; ns are exact in ``args``. Format: "Trace Event
    Format", Google, 2016.
    """
    table = spans(run, op_names)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"ops {run.start_op}..{run.stop_op - 1}"}}
    ]
    for lane in sorted({int(lane) for lane in table["lane"]}):
        for offset, name in ((0, f"lane {lane}"), (1, f"lane {lane} weights")):
            tid = 2 * lane + offset
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}})
            events.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": tid, "args": {"sort_index": tid}})
    for row in table.to_dict("records"):
        name, tid = row["op_name"], 2 * row["lane"]
        exact = {key: row[key] for key in ("tile", "op", "begin_ns", "end_ns")}
        events.append(_slice(name, "tile", tid, row["begin_ns"], row["end_ns"], exact))
        events.append(_slice("compute", "compute", tid, row["compute_start_ns"], row["end_ns"], {"tile": row["tile"]}))
        if row["load_start_ns"] < row["load_end_ns"]:
            load = {key: row[key] for key in ("tile", "load_start_ns", "load_end_ns")}
            events.append(_slice(name, "weights", tid + 1, row["load_start_ns"], row["load_end_ns"], load))
    return {"displayTimeUnit": "ns", "traceEvents": events, "otherData": {"makespan_ns": run.makespan_ns}}


def _slice(name: str, category: str, tid: int, begin_ns: int, end_ns: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "cat": category, "ph": "X", "pid": 0, "tid": tid,
        "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3, "args": args,
    }  # fmt: skip
