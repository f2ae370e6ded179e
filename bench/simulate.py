"""How fast one pass is: against SimPy on the same graph in the same process, and against reading the arrays once.

    python bench/simulate.py [--tiles 221408] [--rounds 15]

Prints one row a way. Times are the median over the rounds, except SimPy's, which runs once a mode, with Python's
garbage collector off in its favour; its makespan must equal the pass's. SimPy here plays every step of a tile
(dispatch, waits, loads, compute, signal: about eight events), so it is slower than with one delay a tile.
Times vary by 2x between runs of a shared machine; the ratios are what to look at.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from oracles import simulate_simpy  # noqa: E402  (the path comes first)

from workbench import simulate as sim  # noqa: E402

LANES, TILES_PER_OP, EVENTS_PER_OP = 132, 223, 4


def layered_queue(tiles: int, seed: int = 0) -> sim.TileQueue:
    """Operators of 223 tiles in round-robin over 132 lanes; each tile signals one of its operator's four events and
    waits for one or two of the operator before."""
    rng = np.random.default_rng(seed)
    ids = np.arange(tiles)
    op = ids // TILES_PER_OP
    ops = int(op[-1]) + 1
    signal = EVENTS_PER_OP * op + ids % EVENTS_PER_OP
    counts = np.where(op == 0, 0, 1 + rng.integers(0, 2, tiles))
    wait_ptr = np.concatenate([[0], counts.cumsum()])
    waiter = np.repeat(ids, counts)
    second = np.arange(len(waiter)) - wait_ptr[waiter]
    wait_event = EVENTS_PER_OP * (op[waiter] - 1) + (waiter + second) % EVENTS_PER_OP
    indices = (ids % LANES, op, signal, wait_ptr, wait_event, np.bincount(signal, minlength=EVENTS_PER_OP * ops))
    times = (rng.integers(low, high, tiles) for low, high in ((200, 900), (50, 200), (100, 700)))
    return sim.TileQueue(*(a.astype(np.uint32) for a in indices), *(a.astype(np.int64) for a in times), LANES, ops)


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        work()
        taken.append((time.perf_counter_ns() - began) / 1e6)
    return median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiles", type=int, default=221_408)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    queue = layered_queue(args.tiles)
    arrays = [a for a in vars(queue).values() if isinstance(a, np.ndarray)]
    print(f"{args.tiles} tiles, {queue.ops} operators, {len(queue.wait_event)} waits, {LANES} lanes")
    print(f"{'way':<42} {'ms':>9} {'x SimPy':>8} {'x reading':>9}")
    floor = milliseconds(lambda: [a.max() for a in arrays], args.rounds)
    costs = {"launch_ns": 5_000, "dispatch_ns": 60, "event_ns": 800, "signal_ns": 40, "drain_ns": 900}
    for name, extra in {
        "events, no prefetch": {"prefetch_depth": 0},
        "events, prefetch depth 3": {"prefetch_depth": 3},
        "barriers": {"prefetch_depth": 1, "gap_ns": 900, "barrier": True},
    }.items():
        mechanism = sim.Mechanism(**costs, **extra)
        gc.disable()
        began = time.perf_counter_ns()
        total, _ = simulate_simpy.simulate(queue, mechanism)
        simpy_ms = (time.perf_counter_ns() - began) / 1e6
        gc.enable()
        if total != sim.makespan(queue, mechanism):
            raise SystemExit(f"{name}: SimPy says {total} ns, the pass {sim.makespan(queue, mechanism)} ns")
        sim.simulate(queue, mechanism)  # compiled before it is timed
        rows = {
            "one pass": milliseconds(lambda m=mechanism: sim.makespan(queue, m), args.rounds),
            "one pass, times kept": milliseconds(lambda m=mechanism: sim.simulate(queue, m), args.rounds),
            "SimPy": simpy_ms,
        }
        for row, ms in rows.items():
            print(f"{name + ': ' + row:<42} {ms:>9.2f} {simpy_ms / ms:>8.0f} {ms / floor:>9.1f}")
    print(f"{'reading the arrays once':<42} {floor:>9.2f}")


if __name__ == "__main__":
    main()
