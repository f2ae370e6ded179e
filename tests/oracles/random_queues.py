"""Tile queues and mechanisms for hypothesis: few tiles, small whole times, so that ties are common."""

from itertools import chain

import numpy as np
from hypothesis import strategies as st

from workbench import simulate as sim

SMALL_NS = st.integers(0, 9)


def queue_of(
    lane: list[int],
    op: list[int],
    signal: list[int],
    waits: list[list[int]],
    weight_ns: list[int],
    input_ns: list[int],
    compute_ns: list[int],
    lanes: int | None = None,
    ops: int | None = None,
    threshold: list[int] | None = None,
) -> sim.TileQueue:
    """A queue from lists; lanes, operators and thresholds are those that the tiles need."""
    counts = [signal.count(event) for event in range(max(signal, default=-1) + 1)]
    ptr = np.cumsum([0, *map(len, waits)])
    indices = (lane, op, signal, ptr, [*chain(*waits)], counts if threshold is None else threshold)
    return sim.TileQueue(
        *(np.array(a, np.uint32) for a in indices),
        *(np.array(a, np.int64) for a in (weight_ns, input_ns, compute_ns)),
        max(lane, default=-1) + 1 if lanes is None else lanes,
        max(op, default=-1) + 1 if ops is None else ops,
    )


@st.composite
def mechanisms(draw: st.DrawFn, barrier: bool | None = None, most_prefetch: int = 3) -> sim.Mechanism:
    times = {
        name: draw(SMALL_NS) for name in ("launch_ns", "gap_ns", "dispatch_ns", "event_ns", "signal_ns", "drain_ns")
    }
    depth = draw(st.integers(0, most_prefetch))
    return sim.Mechanism(**times, prefetch_depth=depth, barrier=draw(st.booleans()) if barrier is None else barrier)


@st.composite
def queues(
    draw: st.DrawFn, waits_in_own_op: bool = False, lane_a_tile: bool = False, longest_ns: int = 20
) -> sim.TileQueue:
    """Up to 5 operators, some of no tiles, over up to 4 lanes; a tile may wait for any event that is fired by then."""
    op = [o for o in range(draw(st.integers(0, 5))) for _ in range(draw(st.integers(0, 4)))]
    lanes = len(op) if lane_a_tile else draw(st.integers(1, 4))
    lane = list(range(lanes)) if lane_a_tile else [draw(st.integers(0, lanes - 1)) for _ in op]
    signal = [draw(st.integers(0, 5)) for _ in op]
    last = {event: t for t, event in enumerate(signal)}
    ready = [
        [e for e, by in last.items() if by < t and (waits_in_own_op or op[by] < op[t])] for t in range(len(op))
    ]  # fmt: skip
    waits = [draw(st.lists(st.sampled_from(sorted(r)), unique=True, max_size=3)) if r else [] for r in ready]
    times = ([draw(st.integers(0, longest_ns)) for _ in op] for _ in range(3))
    return queue_of(lane, op, signal, waits, *times, lanes=lanes, ops=max(op, default=0) + draw(st.integers(1, 2)))


@st.composite
def regions(
    draw: st.DrawFn, most_prefetch: int = 3, longest_ns: int = 20
) -> tuple[sim.TileQueue, sim.Mechanism, int, int]:
    mechanism = draw(mechanisms(most_prefetch=most_prefetch))
    queue = draw(queues(waits_in_own_op=not mechanism.barrier, longest_ns=longest_ns))
    start = draw(st.integers(0, queue.ops))
    return queue, mechanism, start, draw(st.integers(start, queue.ops))
