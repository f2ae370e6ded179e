"""A region as SimPy processes: a worker and a loader a lane. Independent of `workbench.simulate`'s clocks.

Takes a queue and a mechanism by their attributes alone, so it imports nothing of the workbench.
"""

from collections import defaultdict
from collections.abc import Generator
from typing import Any

import simpy

Process = Generator[simpy.Event, Any, None]


def simulate(queue: Any, mechanism: Any, start_op: int = 0, stop_op: int | None = None) -> tuple[int, dict[int, int]]:
    """Makespan of [start_op, stop_op) in ns, and when each tile's compute ended, by tile id."""
    stop_op = queue.ops if stop_op is None else stop_op
    op, lane, signal, threshold = (getattr(queue, n).tolist() for n in ("op", "lane", "signal", "threshold"))
    ptr, wait_event = queue.wait_ptr.tolist(), queue.wait_event.tolist()
    weight, inputs, compute = queue.weight_ns.tolist(), queue.input_ns.tolist(), queue.compute_ns.tolist()
    env, m = simpy.Environment(), mechanism
    fired = [env.event() for _ in threshold]
    missing = threshold[:]
    computed: dict[int, simpy.Event] = {}
    loaded: dict[int, simpy.Event] = {}
    ends: dict[int, int] = {}

    def give_signal(event: int) -> None:
        missing[event] -= 1
        if missing[event] == 0:
            fired[event].succeed(value=env.now)

    def worker(tiles: list[int]) -> Process:
        for t in tiles:
            yield env.timeout(m.dispatch_ns)
            for event in () if m.barrier else wait_event[ptr[t] : ptr[t + 1]]:
                at = yield fired[event]
                if at is not None and at + m.event_ns > env.now:
                    yield env.timeout(at + m.event_ns - env.now)
            if m.prefetch_depth == 0:
                yield env.timeout(inputs[t]) & env.timeout(weight[t])
            else:
                yield env.timeout(inputs[t])
                yield loaded[t]
            yield env.timeout(compute[t])
            ends[t] = env.now
            computed[t].succeed()
            yield env.timeout(m.signal_ns)
            give_signal(signal[t])

    def loader(tiles: list[int]) -> Process:
        for i, t in enumerate(tiles):
            if i >= m.prefetch_depth:
                yield computed[tiles[i - m.prefetch_depth]]
            yield env.timeout(weight[t])
            loaded[t].succeed()

    def kernel(tiles: list[int]) -> Process:
        shares = defaultdict(list)
        for t in tiles:
            shares[lane[t]].append(t)
            computed[t], loaded[t] = env.event(), env.event()
        if m.prefetch_depth:
            for share in shares.values():
                env.process(loader(share))
        yield env.all_of([env.process(worker(share)) for share in shares.values()])

    def region() -> Process:
        for t in range(len(op)):
            if op[t] < start_op:
                missing[signal[t]] -= 1
        for event, left in enumerate(missing):
            if left == 0:
                fired[event].succeed(value=None)  # before the region: nobody waits for it
        yield env.timeout(m.launch_ns)
        tiles = [t for t in range(len(op)) if start_op <= op[t] < stop_op]
        by_op = defaultdict(list)
        for t in tiles:
            by_op[op[t]].append(t)
        for group in by_op.values() if m.barrier else [tiles]:
            if m.barrier:
                yield env.timeout(m.gap_ns)
            yield env.process(kernel(group))
        yield env.timeout(m.drain_ns)

    env.run(env.process(region()))
    return env.now, ends
