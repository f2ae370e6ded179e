"""How fast the engines are: against SimPy on the same graph in the same process, and against reading the arrays once.

    python bench/simulate.py [--tiles 221408] [--rounds 15]

Prints one row a way. Times are the median over the rounds, except SimPy's, which runs once a mode, with Python's
garbage collector off in its favour; its makespan must equal the engine's. SimPy here plays every step of a tile
(dispatch, waits, loads, compute, signal: about eight events), so it is slower than with one delay a tile; and where
bandwidth is shared it counts down what each load lacks at every start and end of one. In all it takes minutes.
Times vary by 2x between runs of a shared machine; the ratios are what to look at.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from oracles import simulate_simpy, simulate_simpy_queues  # noqa: E402  (the path comes first)

from workbench import simulate as sim  # noqa: E402
from workbench.simulate.shared import QUANTA_PER_BYTE  # noqa: E402

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


COSTS = {"launch_ns": 5_000, "dispatch_ns": 60, "event_ns": 800, "signal_ns": 40, "drain_ns": 900}
STATIC = {
    "events, no prefetch": {"prefetch_depth": 0},
    "events, prefetch depth 3": {"prefetch_depth": 3},
    "barriers": {"prefetch_depth": 1, "gap_ns": 900, "barrier": True},
}
BYTES_PER_NS = 25  # a lane's share of 3.35 TB/s among 132, so that loads take about as long as in the static engine
BANDWIDTH = sim.SharedBandwidth(bytes_per_s=3.35e12, lane_bytes_per_s=60e9)  # of the order of an H100; synthetic


def once(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result and how many ms it took, with the collector off."""
    gc.disable()
    began = time.perf_counter_ns()
    result = work()
    taken = (time.perf_counter_ns() - began) / 1e6
    gc.enable()
    return result, taken


def report(
    name: str, simpy_run: Callable[[], Any], ways: dict[str, Callable[[], Any]], rounds: int, floor: float
) -> None:
    """A row a way, then SimPy's; `ways` return a makespan or a Run, and SimPy a makespan first."""
    result, simpy_ms = once(simpy_run)
    for way, work in ways.items():
        found = work()  # compiled before it is timed
        total = found.makespan_ns if isinstance(found, sim.Run) else found
        if total != result[0]:
            raise SystemExit(f"{name}, {way}: {total} ns, and SimPy says {result[0]} ns")
        ms = milliseconds(work, rounds)
        print(f"{name + ': ' + way:<54} {ms:>9.2f} {simpy_ms / ms:>8.0f} {ms / floor:>9.1f}")
    print(f"{name + ': SimPy':<54} {simpy_ms:>9.2f} {1:>8} {simpy_ms / floor:>9.1f}")


def report_replications(queue: sim.TileQueue, rounds: int, count: int = 1_000) -> None:
    """Lines on `replicate`: how many a second on one core, and how often that is what passes one by one come to.

    A pass one by one is `makespan` alone: the times are taken to be scaled already.
    """
    rng = np.random.default_rng(0)
    factors, overheads = (np.exp(0.05 * rng.standard_normal(shape)) for shape in ((count, queue.ops), count))
    ways = {**STATIC, "overlapping launches": {**STATIC["barriers"], "overlap": True, "wait_ns": 900}}
    began = time.perf_counter()
    sim.replicate(queue, sim.Mechanism(), factors[:1], overheads[:1])
    print(f"replications: {time.perf_counter() - began:.1f} s to the first, compiled or read from the cache")
    for name, extra in ways.items():
        m = sim.Mechanism(**COSTS, **extra)
        found = sim.replicate(queue, m, factors, overheads)
        if found[7] != sim.simulate(*sim.scaled(queue, m, factors[7], overheads[7])).makespan_ns:
            raise SystemExit(f"replications, {name}: {found[7]} ns is not what a run of the same times takes")
        ms = milliseconds(lambda m=m: sim.replicate(queue, m, factors, overheads), 3) / count
        one = (
            milliseconds(lambda m=m: sim.simulate(queue, m), rounds)
            if m.overlap
            else milliseconds(lambda m=m: sim.makespan(queue, m), rounds)
        )
        print(f"{'replications, ' + name:<54} {ms:>9.3f} {1e3 / ms:>7,.0f}/s {one / ms:>6.1f} x one by one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiles", type=int, default=221_408)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    queue = layered_queue(args.tiles)
    loads = sim.TileLoads(queue.weight_ns * BYTES_PER_NS, queue.input_ns * BYTES_PER_NS)
    arrays = [a for a in vars(queue).values() if isinstance(a, np.ndarray)]
    print(f"{args.tiles} tiles, {queue.ops} operators, {len(queue.wait_event)} waits, {LANES} lanes")
    print(f"{'way':<54} {'ms':>9} {'x SimPy':>8} {'x reading':>9}")
    floor = milliseconds(lambda: [a.max() for a in arrays], args.rounds)
    for name, extra in STATIC.items():
        m = sim.Mechanism(**COSTS, **extra)
        ways = {
            "one pass": lambda m=m: sim.makespan(queue, m),
            "one pass, times kept": lambda m=m: sim.simulate(queue, m),
        }
        report(name, lambda m=m: simulate_simpy.simulate(queue, m), ways, args.rounds, floor)
    for name in ("events, no prefetch", "barriers"):
        m = sim.Mechanism(**COSTS, **STATIC[name])
        ways = {"times kept": lambda m=m: sim.simulate_dynamic(queue, m)}
        twin = partial(simulate_simpy_queues.dynamic, queue, m, 0, queue.ops)
        report(f"dynamic queues, {name}", twin, ways, args.rounds, floor)
    for name in ("events, prefetch depth 3", "barriers"):
        m = sim.Mechanism(**COSTS, **STATIC[name])
        ways = {"times kept": lambda m=m: sim.simulate_shared(queue, loads, BANDWIDTH, m)}
        twin = partial(simulate_simpy_queues.shared, queue, loads, BANDWIDTH, QUANTA_PER_BYTE, m, 0, queue.ops)
        report(f"shared bandwidth, {name}", twin, ways, args.rounds, floor)
        found = sim.sharing_difference(queue, loads, BANDWIDTH, m)
        print(
            f"    makespan {found.makespan_ratio:.3f} x that of fair shares; an operator differs by "
            f"{found.mean_ns:.0f} ns in the mean, {found.max_ns} ns at most"
        )
    run = sim.simulate(queue, sim.Mechanism(**COSTS, prefetch_depth=3))
    for name, show in (("spans", sim.spans), ("chrome_trace", sim.chrome_trace)):
        print(f"{name:<54} {milliseconds(lambda show=show: show(run), 3):>9.2f}")
    print(f"{'reading the arrays once':<54} {floor:>9.2f}")
    report_replications(queue, args.rounds)


if __name__ == "__main__":
    main()
