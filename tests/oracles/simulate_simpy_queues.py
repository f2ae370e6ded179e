"""Dynamic queues and shared bandwidth as SimPy processes; independent of `workbench.simulate`'s clocks and heaps.

Takes queues and mechanisms by their attributes alone, so it imports nothing of the workbench. What happens at one
instant is ordered by SimPy's own priorities: processes first (0 and 1), then `HAND_OUT`, then `SERVE`.
"""

from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

import simpy

Process = Generator[simpy.Event, Any, None]
HAND_OUT, SERVE = 2, 3


def _at_last(env: simpy.Environment, priority: int, action: Callable[[], None]) -> None:
    event = simpy.Event(env)
    event._ok, event._value = True, None
    event.callbacks.append(lambda _: action())
    env.schedule(event, priority)


def _split(queue: Any, mechanism: Any, start_op: int, stop_op: int) -> tuple[list[list[int]], list[list[int]], Any]:
    """Tiles by kernel; by tile the events of the region that it waits for; signals of the region by event."""
    op, signal = queue.op.tolist(), queue.signal.tolist()
    ptr, wait_event = queue.wait_ptr.tolist(), queue.wait_event.tolist()
    tiles = [t for t in range(len(op)) if start_op <= op[t] < stop_op]
    missing: dict[int, int] = defaultdict(int)
    for t in tiles:
        missing[signal[t]] += 1
    waits = [[e for e in wait_event[ptr[t] : ptr[t + 1]] if missing.get(e)] for t in range(len(op))]
    if not mechanism.barrier:
        return [tiles], waits, missing
    by_op = defaultdict(list)
    for t in tiles:
        by_op[op[t]].append(t)
    return list(by_op.values()), [[] for _ in op], missing


def dynamic(
    queue: Any, mechanism: Any, start_op: int, stop_op: int
) -> tuple[int, dict[int, int], dict[int, int]]:  # fmt: skip
    """Makespan in ns; when each tile's compute ended and on which lane it ran, by tile id."""
    env, m = simpy.Environment(), mechanism
    kernels, waits, missing = _split(queue, m, start_op, stop_op)
    signal = queue.signal.tolist()
    weight, inputs, compute = queue.weight_ns.tolist(), queue.input_ns.tolist(), queue.compute_ns.tolist()
    waiters = defaultdict(list)
    for t in (t for tiles in kernels for t in tiles):
        for event in waits[t]:
            waiters[event].append(t)
    left = [len(events) for events in waits]
    idle: list[tuple[int, int, simpy.Event]] = []  # since when, the lane, and where to send it a tile
    ready: list[int] = []
    seen: list[tuple[int, int]] = []  # when, and the event
    ends: dict[int, int] = {}
    lanes: dict[int, int] = {}
    unfinished = [0]

    def hand_out() -> None:
        if ready and idle:
            idle.sort(key=lambda entry: entry[:2])
            _, lane, inbox = idle.pop(0)
            lanes[ready[0]] = lane
            inbox.succeed(ready.pop(0))
            _at_last(env, HAND_OUT, hand_out)

    def serve() -> None:
        _, event = min(seen)
        seen.remove(min(seen))
        for t in waiters[event]:
            left[t] -= 1
            if left[t] == 0:
                ready.append(t)
        _at_last(env, HAND_OUT, hand_out)

    def see(event: int) -> Process:
        yield env.timeout(m.event_ns)
        seen.append((env.now, event))
        _at_last(env, SERVE, serve)

    def worker(lane: int, finished: simpy.Event) -> Process:
        while True:
            inbox = env.event()
            idle.append((env.now, lane, inbox))
            _at_last(env, HAND_OUT, hand_out)
            t = yield inbox
            weights = env.timeout(weight[t]) if m.prefetch_depth else None
            yield env.timeout(m.dispatch_ns)
            yield env.timeout(inputs[t]) & (weights or env.timeout(weight[t]))
            yield env.timeout(compute[t])
            ends[t] = env.now
            yield env.timeout(m.signal_ns)
            missing[signal[t]] -= 1
            if missing[signal[t]] == 0 and not m.barrier:
                env.process(see(signal[t]))
            unfinished[0] -= 1
            if unfinished[0] == 0:
                finished.succeed()

    def region() -> Process:
        yield env.timeout(m.launch_ns)
        for tiles in kernels:
            if m.barrier:
                yield env.timeout(m.gap_ns)
            if tiles:
                idle.clear()
                ready.extend(t for t in tiles if left[t] == 0)
                unfinished[0], finished = len(tiles), env.event()
                for lane in range(queue.lanes):
                    env.process(worker(lane, finished))
                yield finished
        yield env.timeout(m.drain_ns)

    env.run(env.process(region()))
    return env.now, ends, lanes


class Memory:
    """A server that all loads share; what each still lacks is counted down whenever their number changes."""

    def __init__(self, env: simpy.Environment, rate: Callable[[int], int]) -> None:
        self.env, self.rate, self.since = env, rate, 0
        self.left: dict[simpy.Event, int] = {}
        self.changes = 0

    def load(self, quanta: int) -> simpy.Event:
        self.settle()
        done = self.env.event()
        self.left[done] = quanta
        self.plan()
        return done

    def settle(self) -> None:
        if self.left and self.env.now > self.since:
            each = self.rate(len(self.left)) * (self.env.now - self.since)
            self.left = {done: left - each for done, left in self.left.items()}
        self.since = self.env.now

    def plan(self) -> None:
        self.changes += 1
        if self.left:
            after = -(-max(0, min(self.left.values())) // self.rate(len(self.left)))
            self.env.process(self.finish(after, self.changes))

    def finish(self, after: int, change: int) -> Process:
        yield self.env.timeout(after)
        if change == self.changes:
            self.settle()
            for done in [done for done, left in self.left.items() if left <= 0]:
                del self.left[done]
                done.succeed()
            self.plan()


def shared(
    queue: Any, loads: Any, bandwidth: Any, quanta: int, mechanism: Any, start_op: int, stop_op: int
) -> tuple[int, dict[int, int]]:
    """Makespan in ns, and when each tile's compute ended, by tile id."""
    env, m = simpy.Environment(), mechanism
    kernels, waits, missing = _split(queue, m, start_op, stop_op)
    lane, signal, compute = queue.lane.tolist(), queue.signal.tolist(), queue.compute_ns.tolist()
    weight, inputs = loads.weight_bytes.tolist(), loads.input_bytes.tolist()
    rates = bandwidth.rates(2 * queue.lanes)
    memory = Memory(env, lambda loads: rates[loads - 1])
    fired = {event: env.event() for event in missing}
    computed: dict[int, simpy.Event] = {}
    loaded: dict[int, simpy.Event] = {}
    ends: dict[int, int] = {}

    def worker(tiles: list[int]) -> Process:
        for t in tiles:
            yield env.timeout(m.dispatch_ns)
            for event in waits[t]:
                at = yield fired[event]
                if at + m.event_ns > env.now:
                    yield env.timeout(at + m.event_ns - env.now)
            if m.prefetch_depth == 0:
                yield memory.load(inputs[t] * quanta) & memory.load(weight[t] * quanta)
            else:
                yield memory.load(inputs[t] * quanta)
                yield loaded[t]
            yield env.timeout(compute[t])
            ends[t] = env.now
            computed[t].succeed()
            yield env.timeout(m.signal_ns)
            missing[signal[t]] -= 1
            if missing[signal[t]] == 0:
                fired[signal[t]].succeed(value=env.now)

    def loader(tiles: list[int]) -> Process:
        for i, t in enumerate(tiles):
            if i >= m.prefetch_depth:
                yield computed[tiles[i - m.prefetch_depth]]
            yield memory.load(weight[t] * quanta)
            loaded[t].succeed()

    def region() -> Process:
        yield env.timeout(m.launch_ns)
        for tiles in kernels:
            if m.barrier:
                yield env.timeout(m.gap_ns)
            shares = defaultdict(list)
            for t in tiles:
                shares[lane[t]].append(t)
                computed[t], loaded[t] = env.event(), env.event()
            for share in shares.values() if m.prefetch_depth else ():
                env.process(loader(share))
            yield env.all_of([env.process(worker(share)) for share in shares.values()])
        yield env.timeout(m.drain_ns)

    env.run(env.process(region()))
    return env.now, ends
