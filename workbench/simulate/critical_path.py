"""Why a region takes as long as it does: its makespan, split exactly into causes along the critical path.

From the last tile's end back to the launch, each time was set by one thing that ended just then; following it leaves
segments that cover [0, makespan) once. What a kernel does while the one before it still runs (`overlap`) costs nothing
and is left out. Where two things ended together, the path follows the first of: activations before weights; the lane's
own queue before an event; the loader before a page; the smaller tile id. Intervals are half-open.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.simulate.engine import Run

CAUSES = ("launch", "ramp", "dispatch", "weights", "activations", "compute", "event_wait", "tail", "drain")
TAIL = CAUSES.index("tail")


class Segment(NamedTuple):
    """A stretch of the critical path, owed to one of CAUSES: [begin_ns, end_ns) from the region's start."""

    cause: str
    tile: int | None  # id in the queue; None for launch, ramp and drain, which are the region's
    begin_ns: int
    end_ns: int


class Path(NamedTuple):
    """The critical path in order of time, as arrays: `Segment` by `Segment`, none empty.

    ``cause`` indexes CAUSES; ``tile`` is -1 where a segment has none.
    """

    cause: NDArray[np.int64]
    tile: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @property
    def length_ns(self) -> NDArray[np.int64]:
        """How long each segment is."""
        lengths: NDArray[np.int64] = self.end_ns - self.begin_ns
        return lengths


def causes(run: Run) -> dict[str, int]:
    """Nanoseconds of the makespan owed to each of CAUSES, in that order; they sum to `run.makespan_ns` exactly.

    launch, drain
        The mechanism's, once a region.
    ramp
        The gaps before operators, with `barrier`; with `overlap` what of them the operator before does not hide.
    dispatch, weights, activations, compute
        Of the tiles on the path: what they wait for, so weights that came in behind other work do not count. Where
        loads share bandwidth, they are as long as the others' let them be.
    event_wait
        `signal_ns` of the tiles on the path, and `event_ns` where one waits for another.
    tail
        Only with `barrier`: the wait for an operator's slowest lane after its mean lane is done. With work w[l] from
        the end of the operator's gap to the last signal of lane l, over the lanes that hold any of its tiles, that is
        the time from the gap's end + ceil(mean w) to the gap's end + max w, whatever the slowest lane does then. Lanes
        without a tile do not count: a small operator is not all tail.
    """
    path = path_of(run)
    total = np.zeros(len(CAUSES), np.int64)
    np.add.at(total, path.cause, path.length_ns)
    return dict(zip(CAUSES, total.tolist(), strict=True))


def critical_tiles(run: Run) -> list[int]:
    """Ids of the tiles on the critical path, first to last, each once."""
    tiles = path_of(run).tile
    return [tile for tile, _ in groupby(tiles[tiles >= 0].tolist())]


def critical_segments(run: Run) -> list[Segment]:
    """The critical path in order of time; the segments cover [0, makespan) without gap or overlap, none is empty."""
    columns = (column.tolist() for column in path_of(run))
    return [
        Segment(CAUSES[cause], None if tile < 0 else tile, begin, end)
        for cause, tile, begin, end in zip(*columns, strict=True)
    ]


def path_of(run: Run) -> Path:
    """The critical path of a run."""
    cause, tile, begin, end = _walk(run)[:, ::-1]
    if run.mechanism.overlap or run.mechanism.barrier:
        at = np.maximum(tile - run.first_tile, 0)
        if run.mechanism.overlap and len(run.end_ns):
            top = np.where(tile < 0, begin, run.tops_ns[at])
            begin, end = np.maximum(begin, top), np.maximum(end, top)
        if run.mechanism.barrier and len(run.end_ns):
            cut = np.where(tile < 0, end, np.clip(_tail_starts(run)[at], begin, end))
            cause, tile = np.repeat(cause, 2), np.repeat(tile, 2)
            cause[1::2] = TAIL
            begin, end = np.stack([begin, cut], 1).ravel(), np.stack([cut, end], 1).ravel()
    some = begin < end
    return Path(cause[some], tile[some], begin[some], end[some])


def _walk(run: Run) -> NDArray[np.int64]:
    """(4, segments): cause, tile, begin and end from the drain back to the launch, the tail not taken out."""
    from workbench.simulate import kernels

    queue, m = run.queue, run.mechanism
    previous, fired_by = _links(run)
    nothing = np.zeros(0, np.int64)
    costs = kernels.Costs(
        m.launch_ns, m.gap_ns, m.dispatch_ns, m.event_ns, m.signal_ns, m.drain_ns,
        np.uint64(min(m.prefetch_depth, len(queue.lane))), bool(m.barrier),
    )  # fmt: skip
    times = kernels.Times(
        run.begin_ns, run.load_start_ns, run.load_end_ns, run.compute_start_ns, run.end_ns, run.input_end_ns,
        run.tops_ns if m.overlap else nothing, np.asarray(run.given_ns) if m.overlap else nothing,
    )  # fmt: skip
    most, found = 1024, -1
    while found < 0:
        most *= 2
        out = np.empty((4, most), np.int64)
        found = kernels.critical_path(
            queue._kernel_tiles, costs, times, queue.op, run.first_tile, run.makespan_ns, previous, fired_by,
            run.dynamic_lane is not None, bool(m.overlap), out,
        )  # fmt: skip
    return out[:, :found]


def _tail_starts(run: Run) -> NDArray[np.int64]:
    """When the mean lane of each tile's operator is done, by tile; see `causes`."""
    op, m = run.queue.op[run.tiles], run.mechanism
    first = np.flatnonzero(np.diff(op.astype(np.int64), prepend=-1))  # first tile of each operator that has any
    done = run.end_ns + m.signal_ns
    if m.overlap:
        start = np.broadcast_to(run.given_ns, len(op))[first]
    else:
        start = m.gap_ns + np.concatenate([[m.launch_ns], np.maximum.reduceat(done, first)[:-1]])
    previous, _ = _links(run)
    is_last = np.ones(len(op), np.bool_)  # of its operator on its lane
    follows = (previous >= 0) & (op[previous] == op)
    is_last[previous[follows]] = False
    work = np.where(is_last, done - np.repeat(start, np.diff(first, append=len(op))), 0)
    lanes = np.add.reduceat(is_last.astype(np.int64), first)
    mean = -(-np.add.reduceat(work, first) // lanes)  # rounded up
    return np.repeat(start + mean, np.diff(first, append=len(op)))


def _links(run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """By tile of the run, the one before on its lane; by event, the tile that fired it; -1 for none."""
    from workbench.simulate import kernels

    queue, lane = run.queue, run.lane
    previous, fired_by = kernels.links(
        lane, queue.signal[run.tiles], run.end_ns, queue.lanes, len(queue.threshold)
    )  # fmt: skip
    if run.dynamic_lane is not None:  # then a lane's tiles are in order of time, not of id
        order = np.lexsort((run.end_ns, run.begin_ns, lane))
        same = lane[order[1:]] == lane[order[:-1]]
        previous = np.full(len(lane), -1, np.int64)
        previous[order[1:][same]] = order[:-1][same]
    return previous, fired_by
