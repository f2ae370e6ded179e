"""Dynamic queues and shared bandwidth, stepped from one instant to the next over all lanes: slow and plain.

No heap, no virtual time, no maximum over predecessors: at an instant every lane is looked at until nothing changes,
then the clock moves. Takes queues and mechanisms by their attributes alone, so it imports nothing of the workbench.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import isinf
from typing import Any

Times = dict[str, dict[int, int]]  # by name as in a Run, then by tile


@dataclass
class Result:
    makespan_ns: int
    times: Times
    lane: dict[int, int] = field(default_factory=dict)  # by tile
    brought: list[Fraction] = field(default_factory=list)  # bytes, by nanosecond


def _tiles(queue: Any, start_op: int, stop_op: int) -> list[int]:
    return [t for t in range(len(queue.lane)) if start_op <= queue.op[t] < stop_op]


def _waits(queue: Any, t: int) -> list[int]:
    return [int(e) for e in queue.wait_event[queue.wait_ptr[t] : queue.wait_ptr[t + 1]]]


def _groups(queue: Any, tiles: list[int], barrier: bool) -> list[list[int]]:
    """What runs between two barriers."""
    if not barrier:
        return [tiles]
    return [[t for t in tiles if queue.op[t] == op] for op in sorted({int(queue.op[t]) for t in tiles})]


class _Events:
    """When each event that is signalled in the region has fired; others are None, and have been seen long ago."""

    def __init__(self, queue: Any, mechanism: Any, tiles: list[int]) -> None:
        self.left: dict[int, int] = {}
        for t in tiles:
            self.left[int(queue.signal[t])] = self.left.get(int(queue.signal[t]), 0) + 1
        self.fired_ns: dict[int, int] = {}
        self.queue, self.m = queue, mechanism

    def signal(self, t: int, now: int) -> None:
        event = int(self.queue.signal[t])
        self.left[event] -= 1
        if self.left[event] == 0:
            self.fired_ns[event] = now

    def seen(self, event: int, now: int) -> bool:
        if event not in self.left:
            return True
        return event in self.fired_ns and self.fired_ns[event] + self.m.event_ns <= now

    def may_begin(self, t: int, now: int) -> bool:
        return self.m.barrier or all(self.seen(e, now) for e in _waits(self.queue, t))


# ---- dynamic queues ----


def dynamic(queue: Any, mechanism: Any, start_op: int, stop_op: int) -> Result:
    """As `simulate_dynamic`. At an instant, first of these that applies, again and again: a lane that is done is free
    and signals; the tile that is first in the queue takes the lane that has been free longest; of the events that are
    seen, the one with the smallest (time, id) puts its tiles in the queue, if they wait for nothing else."""
    m, tiles = mechanism, _tiles(queue, start_op, stop_op)
    names = ("begin_ns", "load_start_ns", "load_end_ns", "compute_start_ns", "end_ns")
    result = Result(0, {name: {} for name in names})
    events = _Events(queue, m, tiles)
    now = m.launch_ns
    for group in _groups(queue, tiles, m.barrier):
        now += m.gap_ns if m.barrier else 0
        free_since = dict.fromkeys(range(queue.lanes), now)
        running: dict[int, tuple[int, int]] = {}  # by lane: when it is done, and the tile
        waits = {t: {e for e in _waits(queue, t) if e in events.left and not m.barrier} for t in group}
        fifo, served = [t for t in group if not waits[t]], set[int]()
        while True:
            done = [lane for lane, (done_ns, _) in running.items() if done_ns == now]
            seen = [] if m.barrier else [(ns + m.event_ns, e) for e, ns in events.fired_ns.items() if e not in served]
            if done:
                free_since[done[0]] = now
                events.signal(running.pop(done[0])[1], now)
            elif fifo and free_since:
                lane = min(free_since, key=lambda lane: (free_since[lane], lane))
                del free_since[lane]
                running[lane] = _run(queue, m, fifo[0], now, result), fifo[0]
                result.lane[fifo.pop(0)] = lane
            elif seen and min(seen)[0] == now:
                event = min(seen)[1]
                served.add(event)
                for t in group:
                    if event in waits[t]:
                        waits[t].remove(event)
                        fifo += [] if waits[t] else [t]
            else:
                ahead = [ns for ns, _ in running.values()] + [ns for ns, _ in seen]
                if not running and not any(waits.values()) and not fifo:
                    break
                now = min(ahead)
    result.makespan_ns = now + m.drain_ns
    return result


def _run(queue: Any, m: Any, t: int, now: int, result: Result) -> int:
    """When the tile, given to a lane now, has signalled."""
    begin = now + m.dispatch_ns
    load_start = now if m.prefetch_depth else begin
    load_end = load_start + int(queue.weight_ns[t])
    compute_start = max(begin + int(queue.input_ns[t]), load_end)
    end = compute_start + int(queue.compute_ns[t])
    for name, ns in zip(result.times, (begin, load_start, load_end, compute_start, end), strict=True):
        result.times[name][t] = ns
    return int(end + m.signal_ns)


# ---- shared bandwidth ----


def shared(queue: Any, loads: Any, bandwidth: Any, quanta: int, mechanism: Any, start_op: int, stop_op: int) -> Result:
    """As `simulate_shared`, one nanosecond after the other."""
    m, tiles = mechanism, _tiles(queue, start_op, stop_op)
    names = ("begin_ns", "load_start_ns", "load_end_ns", "compute_start_ns", "end_ns", "input_end_ns")
    result = Result(0, {name: {} for name in names})
    events, now = _Events(queue, m, tiles), m.launch_ns
    running: dict[tuple[str, int], Fraction] = {}  # bytes still to be brought, by which end it is of which tile
    for group in _groups(queue, tiles, m.barrier):
        now += m.gap_ns if m.barrier else 0
        shares = [[t for t in group if queue.lane[t] == lane] for lane in range(queue.lanes)]
        lanes = [_Lane(queue, loads, m, share, now, running, result.times) for share in shares]
        while any(lane.tiles for lane in lanes):
            while any([lane.step(now, events) for lane in lanes]):
                pass
            ended = [load for load, left in running.items() if left <= 0]
            for name, t in ended:
                result.times[name][t] = now
                del running[name, t]
            if not ended and any(lane.tiles for lane in lanes):
                each = _each(bandwidth, len(running), quanta)
                result.brought.append(sum((min(each, left) for left in running.values()), Fraction(0)))
                for load in running:
                    running[load] -= each
                now += 1
    result.makespan_ns = now + m.drain_ns
    return result


def _each(bandwidth: Any, loads: int, quanta: int) -> Fraction:
    """Bytes for each load in a nanosecond: the fair share or the cap, in whole quanta, rounded down."""
    limits = [Fraction(limit) for limit in (bandwidth.lane_bytes_per_s,) if not isinf(limit)]
    if not isinf(bandwidth.bytes_per_s):
        limits.append(Fraction(bandwidth.bytes_per_s) / max(1, loads))
    return Fraction(min(limits) / 10**9 * quanta // 1, quanta)


@dataclass
class _Lane:
    queue: Any
    loads: Any
    m: Any
    tiles: list[int]  # that have not signalled, in order
    free_ns: int  # when the last one had
    running: dict[tuple[str, int], Fraction]
    times: Times
    share: list[int] = field(init=False)  # all tiles

    def __post_init__(self) -> None:
        self.share = self.tiles[:]

    def step(self, now: int, events: _Events) -> bool:
        """Do one thing that the lane or its loader can do now; whether there was one."""
        times = self.times
        unloaded = [t for t in self.share if t not in times["load_start_ns"]]
        loading = [t for t in self.share if t in times["load_start_ns"] and t not in times["load_end_ns"]]
        held = [t for t in self.share if t in times["load_start_ns"] and now < times["end_ns"].get(t, now + 1)]
        if unloaded and not loading and len(held) < self.m.prefetch_depth:
            self.start("load_start_ns", unloaded[0], now)
            return True
        t = self.tiles[0] if self.tiles else None
        if t is None:
            return False
        if t not in times["begin_ns"]:
            if now < self.free_ns + self.m.dispatch_ns or not events.may_begin(t, now):
                return False
            self.start("begin_ns", t, now)
            if self.m.prefetch_depth == 0:
                self.start("load_start_ns", t, now)
            return True
        if t not in times["end_ns"]:
            if t not in times["load_end_ns"] or t not in times["input_end_ns"]:
                return False
            times["compute_start_ns"][t], times["end_ns"][t] = now, now + int(self.queue.compute_ns[t])
            return True
        if now < times["end_ns"][t] + self.m.signal_ns:
            return False
        self.tiles, self.free_ns = self.tiles[1:], now
        events.signal(t, now)
        return True

    def start(self, name: str, t: int, now: int) -> None:
        self.times[name][t] = now
        if name == "begin_ns":
            self.running["input_end_ns", t] = Fraction(int(self.loads.input_bytes[t]))
        else:
            self.running["load_end_ns", t] = Fraction(int(self.loads.weight_bytes[t]))
