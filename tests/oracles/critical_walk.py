"""The critical path walked back tile by tile, in plain Python: the twin of `kernels.critical_path`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workbench.simulate import Run, Segment
from workbench.simulate.critical_path import _links


def walk_back(run: Run) -> Iterator[Segment]:
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
