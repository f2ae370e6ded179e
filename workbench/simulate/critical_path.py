"""Why a region takes as long as it does: its makespan, split exactly into causes along the critical path.

From the last tile's end back to the launch, each time was set by one thing that ended just then; following it leaves
segments that cover [0, makespan) once. What a kernel does while the one before it still runs (`overlap`) costs nothing
and is left out. Where two things ended together, the path follows the first of: activations before weights; the lane's
own queue before an event; the loader before a page; the smaller tile id. Intervals are half-open.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.simulate.engine import Run

CAUSES = ("launch", "ramp", "dispatch", "weights", "activations", "compute", "event_wait", "tail", "drain")


class Segment(NamedTuple):
    """A stretch of the critical path, owed to one of CAUSES: [begin_ns, end_ns) from the region's start."""

    cause: str
    tile: int | None  # id in the queue; None for launch, ramp and drain, which are the region's
    begin_ns: int
    end_ns: int


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
    total = dict.fromkeys(CAUSES, 0)
    for segment in critical_segments(run):
        total[segment.cause] += segment.end_ns - segment.begin_ns
    return total


def critical_tiles(run: Run) -> list[int]:
    """Ids of the tiles on the critical path, first to last, each once."""
    tiles = [segment.tile for segment in _walk_back(run) if segment.tile is not None]
    return [tile for tile, _ in groupby(reversed(tiles))]


def critical_segments(run: Run) -> list[Segment]:
    """The critical path in order of time; the segments cover [0, makespan) without gap or overlap, none is empty."""
    tail_ns = _tail_starts(run) if run.mechanism.barrier else None
    segments: list[Segment] = []
    for segment in _walk_back(run):
        cause, tile, begin, end = segment
        if run.mechanism.overlap and tile is not None:
            top = int(run.tops_ns[tile - run.first_tile])
            begin, end = max(begin, top), max(end, top)
            segment = Segment(cause, tile, begin, end)
        if tail_ns is not None and tile is not None:
            cut = min(max(begin, int(tail_ns[tile - run.first_tile])), end)
            segments += [Segment("tail", tile, cut, end), Segment(cause, tile, begin, cut)]
        else:
            segments.append(segment)
    return [segment for segment in reversed(segments) if segment.begin_ns < segment.end_ns]


def _tail_starts(run: Run) -> NDArray[np.int64]:
    """When the mean lane of each tile's operator is done, by tile; see `causes`."""
    if not len(run.end_ns):
        return run.end_ns
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


def _walk_back(run: Run) -> Iterator[Segment]:
    """Segments from the drain back to the launch, before the tail is taken out; some are empty.

    A step goes from a moment of tile t (numbered within the run) to the moment that set it. "floor" is the moment from
    which t's lane could work at all: the end of the launch or, with `barrier`, of t's operator's gap.
    """
    m, id0, signal_ns = run.mechanism, run.first_tile, run.mechanism.signal_ns
    top = run.makespan_ns - m.drain_ns
    yield Segment("drain", None, top, run.makespan_ns)
    if len(run.end_ns):
        steps = _Steps(run)
        at, t, moment = "done", int(run.end_ns.argmax()), top  # moment: when t's lane could go on, with overlap
        while at != "launch":
            begin, start, end = int(run.begin_ns[t]), int(run.compute_start_ns[t]), int(run.end_ns[t])
            if at == "done":
                yield Segment("event_wait", id0 + t, end, end + signal_ns)
                at = "end"
            elif at == "end":
                yield Segment("compute", id0 + t, start, end)
                at = "loaded"
                if steps.input_end_ns[t] == start:
                    given = steps.given_ns(t)
                    yield Segment("activations", id0 + t, max(begin, given), start)
                    at, moment = ("floor", given) if given > begin else ("begin", begin)
            elif at == "loaded":
                moment = int(run.load_start_ns[t])
                yield Segment("weights", id0 + t, moment, int(run.load_end_ns[t]))
                at, t = steps.before_load(t)
            elif at == "begin":
                cause, at, by = steps.before_begin(t)
                moment = begin - m.dispatch_ns
                yield Segment(cause, id0 + t, begin - (m.event_ns if cause == "event_wait" else m.dispatch_ns), begin)
                t = by
            elif at == "given":  # to a lane, by dynamic queues
                at, by, wait_ns = steps.before_given(t)
                yield Segment("event_wait", id0 + t, begin - m.dispatch_ns - wait_ns, begin - m.dispatch_ns)
                t = by
            else:  # floor
                top = int(run.tops_ns[t]) if m.overlap else 0
                at, t, floor = steps.before_floor(t)
                if m.overlap:
                    yield Segment("ramp", None, top, max(top, moment))
                elif m.barrier:
                    yield Segment("ramp", None, floor - m.gap_ns, floor)
    yield Segment("launch", None, 0, m.launch_ns)


class _Steps:
    """Which moment of which tile set a given one; tiles are numbered within the run, times are its own."""

    def __init__(self, run: Run) -> None:
        self.run, self.m = run, run.mechanism
        self.previous, self.fired_by = _links(run)
        self.input_end_ns, self.op = run.input_end_ns, run.queue.op[run.tiles]
        self.dynamic = run.dynamic_lane is not None

    def given_ns(self, t: int) -> int:
        """When t's operator saw that all before it had ended, with overlap."""
        given = self.run.given_ns
        return given if isinstance(given, int) else int(given[t])

    def _before_on_lane(self, t: int, back: int) -> int:
        """The tile `back` places before on the same lane, -1 if none or if a barrier lies between."""
        at = t
        for _ in range(back):
            at = int(self.previous[at])
            if at < 0 or (self.m.barrier and self.op[at] != self.op[t]):
                return -1
        return at

    def before_load(self, t: int) -> tuple[str, int]:
        if self.m.prefetch_depth == 0:
            return "begin", t
        if self.dynamic:
            return "given", t
        start = self.run.load_start_ns[t]
        before = self._before_on_lane(t, 1)
        if before >= 0 and self.run.load_end_ns[before] == start:
            return "loaded", before
        page = self._before_on_lane(t, self.m.prefetch_depth)
        return ("end", page) if page >= 0 and self.run.end_ns[page] == start else ("floor", t)

    def before_begin(self, t: int) -> tuple[str, str, int]:
        """The cause of the wait that ended when t began, then what it waited for."""
        if self.dynamic:
            return "dispatch", "given", t
        m, before = self.m, self._before_on_lane(t, 1)
        free = self.run.end_ns[before] + m.signal_ns if before >= 0 else m.launch_ns
        begin = self.run.begin_ns[t]
        if m.barrier or free + m.dispatch_ns == begin:
            return ("dispatch", "done", before) if before >= 0 else ("dispatch", "floor", t)
        return "event_wait", "done", self._seen_at(t, int(begin))

    def before_given(self, t: int) -> tuple[str, int, int]:
        """What t's being given to its lane waited for, and how long the event took if it was one."""
        m, before = self.m, self._before_on_lane(t, 1)
        given = int(self.run.begin_ns[t]) - m.dispatch_ns
        if before >= 0 and self.run.end_ns[before] + m.signal_ns == given:
            return "done", before, 0
        if before < 0 and (m.barrier or given == m.launch_ns):
            return "floor", t, 0
        return "done", self._seen_at(t, given), m.event_ns

    def _seen_at(self, t: int, ns: int) -> int:
        """The tile that fired an event which t saw at `ns`; of several the one with the smallest id."""
        queue, id_ = self.run.queue, self.run.first_tile + t
        by = self.fired_by[queue.wait_event[queue.wait_ptr[id_] : queue.wait_ptr[id_ + 1]]]
        by = by[by >= 0]  # the others were fired before the region
        return int(by[self.run.end_ns[by] + self.m.signal_ns + self.m.event_ns == ns].min())

    def before_floor(self, t: int) -> tuple[str, int, int]:
        """("done", the slowest tile of the operator before) or ("launch", t), and when the floor of t was."""
        first = int(np.searchsorted(self.op, self.op[t])) if self.m.barrier else 0
        if first == 0:
            return "launch", t, self.m.launch_ns + (self.m.gap_ns if self.m.barrier else 0)
        start = int(np.searchsorted(self.op, self.op[first - 1]))
        slowest = start + int(self.run.end_ns[start:first].argmax())
        return "done", slowest, int(self.run.end_ns[slowest]) + self.m.signal_ns + self.m.gap_ns
