"""What the CPU runtime costs when no tile computes: launches, tiles, events, forks and joins, each alone."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from workbench.measure import cpu_kernels as kernels
from workbench.measure.cpu_launch import NO_EVENT, Ints, Launch, Mode
from workbench.measure.cpu_runtime import Workers

TILES = 2_000
OPERATORS = 500


class Timing(NamedTuple):
    """Median of repeated timings, ns, and half their interquartile range over it."""

    ns: float
    spread_frac: float


def nop_launch(owner: Ints, workers: int, *, chained: bool = False, operators: int = 0) -> Launch:
    """Tiles that do nothing, tile t on worker ``owner[t]``; chained: each waits for the one before."""
    tiles = len(owner)
    desc = np.zeros((tiles, kernels.DESCRIPTOR_COLUMNS), np.int64)
    queue_ptr = np.searchsorted(np.sort(owner), np.arange(workers + 1)).astype(np.uint32)
    ids = np.arange(tiles + 1, dtype=np.uint32)
    links = max(tiles - 1, 0) if chained else 0
    return Launch(
        desc,
        queue_ptr,
        np.argsort(owner, kind="stable").astype(np.uint32),
        np.maximum(ids, 1) - np.uint32(1) if chained else np.zeros(tiles + 1, np.uint32),
        ids[:links],
        np.ones(links, np.uint32),
        np.where(ids[:-1] < links, ids[:-1], NO_EVENT).astype(np.uint32),
        floats=np.zeros(1, np.float32),
        ints=np.zeros(1, np.int32),
        mode=Mode.REPLAY if operators else Mode.MEGAKERNEL,
        op_ptr=np.linspace(0, tiles, operators + 1).astype(np.uint32) if operators else None,
    )


def timing(pool: Workers, launch: Launch, repeats: int, *, idle_s: float = 0.0) -> Timing:
    """Time whole launches; ``idle_s`` is slept before each, for helpers that shall have gone to sleep."""
    samples = []
    for _ in range(repeats):
        if idle_s:
            time.sleep(idle_s)
        begin = time.perf_counter_ns()
        pool.run(launch)
        samples.append(time.perf_counter_ns() - begin)
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return Timing(float(median), float((high - low) / 2 / max(1.0, median)))


def launch_timing(pool: Workers, workers: int) -> Timing:
    """A launch without tiles, its helpers awake."""
    empty = nop_launch(np.zeros(0, np.int64), workers)
    timing(pool, empty, 50)
    return timing(pool, empty, 1000)


def parked_launch_timing(pool: Workers) -> Timing:
    """A launch without tiles on all workers, its helpers asleep."""
    asleep_s = 2 * pool.park_ns * 1e-9 + 1e-3
    return timing(pool, nop_launch(np.zeros(0, np.int64), pool.count), max(3, int(0.15 / asleep_s)), idle_s=asleep_s)


def tile_ns(pool: Workers, workers: int) -> float:
    """A tile that does nothing and waits for nothing."""
    launch = nop_launch(np.arange(TILES * workers) % workers, workers)
    return max(0.0, timing(pool, launch, 50).ns - launch_timing(pool, workers).ns) / TILES


def event_ns(pool: Workers, workers: int) -> float:
    """From a tile's signal to the start of the one that waits for it, dealt to the workers in turn."""
    launch = nop_launch(np.arange(TILES) % workers, workers, chained=True)
    chain = max(0.0, timing(pool, launch, 50).ns - launch_timing(pool, workers).ns) / TILES
    return max(0.0, chain - tile_ns(pool, workers))


def fork_join_timing(pool: Workers) -> Timing:
    """An operator of a replay: fork, one tile a worker that does nothing, join."""
    launch = nop_launch(np.arange(OPERATORS * pool.count) % pool.count, pool.count, operators=OPERATORS)
    whole = timing(pool, launch, 100)
    return Timing(whole.ns / OPERATORS, whole.spread_frac)
