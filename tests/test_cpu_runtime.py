"""The CPU runtime: each tile body against float64 oracles, and workers that neither hang, nor race, nor go stale."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from workbench.errors import MeasureError
from workbench.measure import cpu_kernels as kernels
from workbench.measure import cpu_probes
from workbench.measure.cpu_launch import NO_EVENT, Launch, Mode
from workbench.measure.cpu_runtime import Workers

Box = tuple[tuple[int, int], ...]
Array = npt.NDArray[np.float64]


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A hang inside compiled code holds the main thread: only another thread can end it."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


def launch_of(
    desc: list[list[int]],
    floats: npt.NDArray[np.float32],
    ints: npt.NDArray[np.int32] | None = None,
    *,
    owner: list[int] | None = None,
    workers: int = 1,
    waits: list[list[int]] | None = None,
    signals: list[int] | None = None,
    threshold: list[int] | None = None,
    operators: list[int] | None = None,
) -> Launch:
    """A launch of tiles in the order given; by default on one worker and without events."""
    tiles = len(desc)
    table = np.zeros((tiles, kernels.DESCRIPTOR_COLUMNS), np.int64)
    for row, values in zip(table, desc, strict=True):
        row[: len(values)] = values
    lane = np.array(owner or [0] * tiles)
    waits = waits or [[] for _ in range(tiles)]
    return Launch(
        table,
        np.concatenate([[0], np.cumsum(np.bincount(lane, minlength=workers))]).astype(np.uint32),
        np.argsort(lane, kind="stable").astype(np.uint32),
        np.concatenate([[0], np.cumsum([len(w) for w in waits])]).astype(np.uint32),
        np.array([event for w in waits for event in w], np.uint32),
        np.array(threshold or [], np.uint32),
        np.array(signals or [NO_EVENT] * tiles, np.uint32),
        floats=floats,
        ints=np.zeros(1, np.int32) if ints is None else ints,
        mode=Mode.REPLAY if operators else Mode.MEGAKERNEL,
        op_ptr=np.array(operators, np.uint32) if operators else None,
    )


# -- bodies --------------------------------------------------------------------------------------------------------


class Memory:
    """A float arena under construction; between any two arrays lies a gap, so that an overrun is seen."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.parts, self.used = rng, [rng.standard_normal(64)], 64

    def put(self, array: Array) -> int:
        at = self.used
        self.parts += [array.ravel(), self.rng.standard_normal(13)]
        self.used += array.size + 13
        return at

    def random(self, *shape: int) -> tuple[Array, int]:
        """An array of float32 values as float64, and its offset."""
        array = self.rng.standard_normal(shape).astype(np.float32).astype(np.float64)
        return array, self.put(array)

    def arena(self) -> npt.NDArray[np.float32]:
        return np.concatenate(self.parts).astype(np.float32)


class Case(NamedTuple):
    """A tile over `box`, what it should leave in which place, and in what steps its box may be split."""

    opcode: int
    box: Box
    rest: list[int]
    arena: npt.NDArray[np.float32]
    ints: npt.NDArray[np.int32]
    results: list[tuple[int, Array]]  # offset, values that should lie there
    steps: tuple[int, int, int] = (1, 1, 1)

    def desc(self, box: Box) -> list[int]:
        return [self.opcode, *(bound for bounds in box for bound in bounds), *self.rest]

    def expected(self) -> Array:
        arena = self.arena.astype(np.float64)
        for at, values in self.results:
            arena[at : at + values.size] = values.ravel()
        return arena


def rms_norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6))


def numpy_of(tensor: torch.Tensor) -> Array:
    return tensor.numpy()


def matmul_case(rng: np.random.Generator, epilogue: int) -> Case:
    memory = Memory(rng)
    b, r, n, norm = (int(rng.integers(1, high)) for high in (4, 6, 70, 3))
    norm -= 1
    heads, width = (3, 2, 2), 2 * int(rng.integers(1, 20))
    c = sum(heads) * width if epilogue == kernels.ROPE else int(rng.integers(1, 80))
    x, x_off = memory.random(b, r, n)
    w, w_off = memory.random(2 * c if epilogue == kernels.GATED else c, n)
    y, y_off = memory.random(b, r, c)
    v = (rms_norm(x) if norm else x) @ w.T
    extra: list[int] = []
    results = [(y_off, v)]
    if epilogue == kernels.RESIDUAL:
        results = [(y_off, y + v)]
    elif epilogue == kernels.GATED:
        results = [(y_off, numpy_of(F.silu(torch.from_numpy(v[..., :c]))) * v[..., c:])]
        extra = [c]
    elif epilogue == kernels.ROPE:
        queries, keys = heads[0] * width, heads[1] * width
        position, positions = 3, 3 + r + 2
        angle = rng.uniform(0, 6, (positions, width // 2)).astype(np.float32).astype(np.float64)
        (cos, cos_off), (sin, sin_off) = ((t, memory.put(t)) for t in (np.cos(angle), np.sin(angle)))
        k, k_off = memory.random(b, positions, keys)
        values, v_off = memory.random(b, positions, keys)
        new = slice(position, position + r)
        turned = v.reshape(b, r, -1, 2, width // 2)
        low, high = turned[..., 0, :], turned[..., 1, :]
        co, si = cos[new, None], sin[new, None]
        turned = np.stack([low * co - high * si, high * co + low * si], axis=-2).reshape(b, r, c)
        y[..., :queries] = turned[..., :queries]
        k[:, new], values[:, new] = turned[..., queries : queries + keys], v[..., queries + keys :]
        results = [(y_off, y), (k_off, k), (v_off, values)]
        extra = [width, queries, keys, k_off, v_off, position, positions * keys, cos_off, sin_off]
    rest = [x_off, r * n, n, n, w_off, y_off, r * c, c, norm, epilogue, *extra]
    step = width if epilogue == kernels.ROPE else 1
    box = ((0, b), (0, r), (0, c))
    return Case(kernels.MATMUL, box, rest, memory.arena(), np.zeros(1, np.int32), results, (1, 1, step))


def attention_case(rng: np.random.Generator) -> Case:
    memory = Memory(rng)
    b, r, kv_heads, group, position = (int(rng.integers(1, high)) for high in (4, 5, 4, 4, 30))
    position -= 1
    width = int(rng.choice([4, 16, 20, 32, 40]))
    heads = kv_heads * group
    q, q_off = memory.random(b, r, heads, width)
    k, k_off = memory.random(b, position + r, kv_heads, width)
    v, v_off = memory.random(b, position + r, kv_heads, width)
    _, y_off = memory.random(b, r, heads, width)
    seen = torch.from_numpy(np.arange(position + r)[None] <= position + np.arange(r)[:, None])
    query, key, value = (torch.from_numpy(t).transpose(1, 2) for t in (q, k, v))
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2)
    strides = [r * heads * width, heads * width]
    cached = [(position + r) * kv_heads * width, kv_heads * width]
    rest = [q_off, *strides, k_off, v_off, *cached, width, group, position, y_off, *strides]
    box = ((0, b), (0, r), (0, heads))
    results = [(y_off, numpy_of(out.contiguous()))]
    return Case(kernels.ATTENTION, box, rest, memory.arena(), np.zeros(1, np.int32), results)


def gather_case(rng: np.random.Generator, *, transposed: bool) -> Case:
    memory = Memory(rng)
    b, r, width, n, entries = (int(rng.integers(1, high)) for high in (4, 5, 40, 5, 9))
    table, table_off = memory.random(n, entries, width)
    cond, cond_off = memory.random(b, width)
    _, y_off = memory.random(b, width, r)
    index = rng.integers(0, entries, (b, r, n)).astype(np.int32)
    given = bool(rng.integers(2))
    y = sum(table[k][index[..., k]] for k in range(n)) + (cond[:, None] if given else 0)
    y = y.swapaxes(1, 2) if transposed else y
    place = [y_off, r * width, 1, r] if transposed else [y_off, r * width, width, 1]
    tables = [n, table_off, entries * width, width]
    rest = [0, r * n, n, 1, *tables, *place, cond_off if given else -1, width]
    return Case(kernels.GATHER, ((0, b), (0, r), (0, width)), rest, memory.arena(), index.ravel(), [(y_off, y)])


def snake(x: torch.Tensor, alpha: torch.Tensor | None) -> torch.Tensor:
    return x if alpha is None else x + torch.sin(alpha[:, None] * x) ** 2 / alpha[:, None]


def conv_case(rng: np.random.Generator, epilogue: int, *, short: bool) -> Case:
    memory = Memory(rng)
    b, channels, c, taps, dilation = (int(rng.integers(1, high)) for high in (4, 9, 11, 8, 4))
    times = int(rng.integers(1, 8)) if short else int(rng.integers(8, 80))
    halo = (taps - 1) * dilation
    x, x_off = memory.random(b, channels, halo + times)
    w, w_off = memory.random(c, channels, taps)
    bias, bias_off = memory.random(c)
    residual, res_off = memory.random(b, c, times)
    _, y_off = memory.random(b, c, times)
    alpha = rng.uniform(0.5, 3, channels).astype(np.float32).astype(np.float64)
    alpha_off = memory.put(alpha) if rng.integers(2) else -1
    staged = snake(torch.from_numpy(x), torch.from_numpy(alpha) if alpha_off >= 0 else None)
    y = numpy_of(F.conv1d(staged, torch.from_numpy(w), torch.from_numpy(bias), dilation=dilation))
    if epilogue == kernels.CONV_RESIDUAL:
        y = y + residual
    elif epilogue == kernels.CONV_TANH:
        y = np.tanh(y)
    source = [x_off + halo, channels * (halo + times), halo + times, channels, taps, dilation]
    rest = [*source, w_off, bias_off, alpha_off, y_off, c * times, times, epilogue, res_off]
    box = ((0, b), (0, times), (0, c))
    return Case(kernels.CONV, box, rest, memory.arena(), np.zeros(1, np.int32), [(y_off, y)])


def upconv_case(rng: np.random.Generator) -> Case:
    memory = Memory(rng)
    b, channels, c, times, rate = (int(rng.integers(1, high)) for high in (4, 9, 11, 12, 10))
    x, x_off = memory.random(b, channels, 1 + times)
    w, _ = memory.random(channels, c, 2 * rate)
    w_off = memory.put(np.stack([w[..., :rate], w[..., rate:]]))
    bias, bias_off = memory.random(c)
    alpha = rng.uniform(0.5, 3, channels).astype(np.float32).astype(np.float64)
    alpha_off = memory.put(alpha) if rng.integers(2) else -1
    _, y_off = memory.random(b, c, times * rate)
    staged = snake(torch.from_numpy(x), torch.from_numpy(alpha) if alpha_off >= 0 else None)
    full = F.conv_transpose1d(staged, torch.from_numpy(w), torch.from_numpy(bias), stride=rate)
    y = numpy_of(full[..., rate : (1 + times) * rate].contiguous())
    source = [x_off + 1, channels * (1 + times), 1 + times, channels, rate, w_off, c, bias_off, alpha_off]
    rest = [*source, y_off, c * times * rate, times * rate]
    box = ((0, b), (0, times), (0, c))
    return Case(kernels.UPCONV, box, rest, memory.arena(), np.zeros(1, np.int32), [(y_off, y)])


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "matmul": lambda rng: matmul_case(rng, kernels.STORE),
    "matmul residual": lambda rng: matmul_case(rng, kernels.RESIDUAL),
    "matmul gated": lambda rng: matmul_case(rng, kernels.GATED),
    "matmul rope": lambda rng: matmul_case(rng, kernels.ROPE),
    "attention": attention_case,
    "gather": lambda rng: gather_case(rng, transposed=False),
    "gather to channels first": lambda rng: gather_case(rng, transposed=True),
    "conv": lambda rng: conv_case(rng, kernels.CONV_STORE, short=False),
    "conv residual": lambda rng: conv_case(rng, kernels.CONV_RESIDUAL, short=False),
    "conv tanh": lambda rng: conv_case(rng, kernels.CONV_TANH, short=False),
    "short conv": lambda rng: conv_case(rng, kernels.CONV_STORE, short=True),
    "short conv residual": lambda rng: conv_case(rng, kernels.CONV_RESIDUAL, short=True),
    "short conv tanh": lambda rng: conv_case(rng, kernels.CONV_TANH, short=True),
    "upconv": upconv_case,
}


def split(rng: np.random.Generator, bounds: tuple[int, int], step: int) -> list[tuple[int, int]]:
    """`bounds` cut at up to two random multiples of `step`."""
    places = np.arange(bounds[0] + step, bounds[1], step)
    inner = sorted(int(p) for p in rng.choice(places, min(len(places), 2), replace=False)) if len(places) else []
    edges = [bounds[0], *inner, bounds[1]]
    return list(pairwise(edges))


def assert_close(got: npt.NDArray[np.float32], expected: Array) -> None:
    scale = np.maximum(np.abs(expected), 1.0)
    worst = float(np.max(np.abs(got - expected) / scale))
    assert worst < 1e-4 / 4, worst


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", CASES)
def test_a_body_equals_its_oracle_whole_and_in_any_split_and_writes_nothing_else(
    name: str, seed: int, pool: Workers
) -> None:
    rng = np.random.default_rng([seed, *name.encode()])
    case = CASES[name](rng)
    whole, parts = case.arena.copy(), case.arena.copy()
    pool.run(launch_of([case.desc(case.box)], whole, case.ints))
    assert_close(whole, case.expected())
    axes = [split(rng, bounds, step) for bounds, step in zip(case.box, case.steps, strict=True)]
    boxes = list(product(*axes))
    desc = [case.desc(box) for box in boxes]
    pool.run(launch_of(desc, parts, case.ints, owner=[i % 2 for i in range(len(desc))], workers=2))
    assert_close(parts, case.expected())
    np.testing.assert_allclose(parts, whole, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_tiles_of_a_split_write_right_values_to_places_of_their_own(name: str, pool: Workers) -> None:
    rng = np.random.default_rng([99, *name.encode()])
    case = CASES[name](rng)
    writers = np.zeros(len(case.arena), int)
    axes = [split(rng, bounds, step) for bounds, step in zip(case.box, case.steps, strict=True)]
    for box in product(*axes):
        one = case.arena.copy()
        pool.run(launch_of([case.desc(box)], one, case.ints))
        changed = one != case.arena
        assert_close(one[changed], case.expected()[changed])
        writers += changed
    assert writers.max() == 1


@pytest.mark.parametrize("width", [1, 7, 64, 257])
def test_argmax_is_the_first_largest_and_nan_wins_as_in_numpy(width: int, pool: Workers) -> None:
    rng = np.random.default_rng(width)
    x = rng.integers(0, 5, (4, width)).astype(np.float32)  # many ties
    x[1] = -np.inf
    x[2, width // 2] = np.nan
    ints = np.full(9, -1, np.int32)
    pool.run(launch_of([[kernels.ARGMAX, 0, 4, 0, width, width, 1, 2]], x.ravel(), ints))
    assert ints[1::2].tolist() == np.argmax(x, axis=1).tolist()
    assert ints[0::2].tolist() == [-1] * 5


@pytest.mark.parametrize("alpha", [1.0, 7.3])
def test_the_snakes_sine_is_within_two_millionths_up_to_a_hundred(alpha: float, pool: Workers) -> None:
    """One channel, one tap of weight 1, and −x as residual leave sin(αx)² / α alone."""
    n = 4096
    a = np.float64(np.float32(alpha))
    x = np.linspace(-100 / alpha, 100 / alpha, n).astype(np.float32)
    floats = np.concatenate([x, -x, [1, 0, a, 0], np.zeros(n)]).astype(np.float32)
    desc = [kernels.CONV, 0, 1, 0, n, 0, 1, 0, n, n, 1, 1, 1, 2 * n, 2 * n + 1, 2 * n + 2, 2 * n + 4, n, n, 1, n]
    pool.run(launch_of([desc], floats))
    got = floats[2 * n + 4 :] * a
    exact = np.sin(a * x.astype(np.float64)) ** 2
    rounding = a * np.abs(x) * 2.0**-23  # of x + sin²/α itself
    assert np.max(np.abs(got - exact) - rounding) < 2e-6


def test_touch_reads_and_leaves_the_arena_alone(pool: Workers) -> None:
    floats = np.arange(1003, dtype=np.float32)
    pool.run(launch_of([[kernels.TOUCH, 1, 1002]], floats))
    assert floats.tolist() == list(range(1003))


def test_nan_and_infinity_are_not_swallowed(pool: Workers) -> None:
    rng = np.random.default_rng(0)
    for name in ("attention", "matmul gated", "conv tanh", "short conv"):
        case = CASES[name](rng)
        arena = np.full_like(case.arena, np.nan)
        pool.run(launch_of([case.desc(case.box)], arena, case.ints))
        at, values = case.results[0]
        assert np.isnan(arena[at : at + values.size]).all(), name


def test_a_gather_index_outside_the_arena_is_an_error_not_a_crash(pool: Workers) -> None:
    floats, ints = np.zeros(64, np.float32), np.array([10_000_000], np.int32)
    desc = [kernels.GATHER, 0, 1, 0, 1, 0, 4, 0, 0, 0, 0, 1, 0, 0, 4, 32, 0, 0, 1, -1, 0]
    launch = launch_of([[kernels.NOP], desc], floats, ints)
    with pytest.raises(MeasureError, match=r"tile 1: a GATHER index leads outside"):
        pool.run(launch)
    ints[0] = -1
    with pytest.raises(MeasureError, match=r"tile 1"):
        pool.run(launch)
    ints[0] = 0
    pool.run(launch)


# -- synchronisation -----------------------------------------------------------------------------------------------


class Dag(NamedTuple):
    """Tile t writes 1 + the sum of its parents' values; whole numbers, so the answer is exact."""

    launch: Launch
    floats: npt.NDArray[np.float32]
    expected: npt.NDArray[np.float32]

    def check(self, workers: Workers) -> None:
        self.floats[1:] = -1e6  # a value read too early shows
        workers.run(self.launch)
        np.testing.assert_array_equal(self.floats[1:], self.expected)


def dag(seed: int, workers: int, *, tiles: int = 200, level: int | None = None) -> Dag:
    """A random DAG on random workers; with `level`, in operators of that many tiles, for a replay as well."""
    rng = np.random.default_rng(seed)
    parents: list[list[int]] = []
    for t in range(tiles):
        before = t if level is None else t // level * level
        parents.append([int(p) for p in rng.integers(0, before, int(rng.integers(1, 4)))] if before else [])
    expected = np.zeros(tiles, np.float64)
    desc, ints = [], []
    for t, own in enumerate(parents):
        expected[t] = 1 + sum(expected[p] for p in own)
        at = len(ints)
        ints += [p + 1 for p in own] or [0]
        cond = 0 if own else -1  # float 0 is the constant 1; without parents it is the table row that is read
        desc.append([kernels.GATHER, 0, 1, 0, 1, 0, 1, at, 0, 0, 1, max(1, len(own)), 0, 0, 1, 1 + t, 0, 0, 1, cond, 0])
    floats = np.ones(tiles + 1, np.float32)
    assert expected.max() < 2**24
    launch = launch_of(
        desc,
        floats,
        np.array(ints, np.int32),
        owner=[int(w) for w in rng.integers(0, workers, tiles)],
        workers=workers,
        waits=[sorted(set(own)) for own in parents],
        signals=list(range(tiles)),
        threshold=[1] * tiles,
        operators=None if level is None else [*range(0, tiles, level), tiles],
    )
    return Dag(launch, floats, expected.astype(np.float32))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_dag_on_two_workers_sees_every_value_in_time_launch_after_launch(seed: int, pool: Workers) -> None:
    graph = dag(seed, 2)
    for _ in range(50):
        graph.check(pool)


@pytest.mark.parametrize("level", [1, 7, 50])
def test_a_replay_equals_the_megakernel(level: int, pool: Workers) -> None:
    graph = dag(level, 2, level=level)
    assert graph.launch.mode is Mode.REPLAY
    for _ in range(20):
        graph.check(pool)


def test_one_launch_survives_three_hundred_restarts_and_pools_of_other_sizes() -> None:
    graphs = [dag(5, 2), dag(6, 1), dag(7, 2, level=10)]
    for cycle in range(300):
        with Workers(2 + cycle % 2) as workers:
            graphs[0].check(workers)
            graphs[1 + cycle % 2].check(workers)


def test_a_launch_that_was_cut_short_starts_afresh(pool: Workers) -> None:
    graph = dag(8, 2)
    graph.check(pool)
    graph.launch._arrays[kernels.L_COUNTERS][::3, kernels.E_COUNT] += 2  # as a run that ended midway would leave it
    graph.launch._block[kernels.L_COMPLETE] = 0
    for _ in range(5):
        graph.check(pool)


def test_an_event_may_fire_before_all_its_signals_in_every_launch(pool: Workers) -> None:
    floats = np.zeros(1, np.float32)
    nop = [kernels.NOP]
    launch = launch_of(
        [nop] * 5, floats, owner=[0, 0, 1, 1, 0], workers=2, waits=[[], [], [0], [1], [1]],
        signals=[0, 0, 1, 0, NO_EVENT], threshold=[2, 1],
    )  # fmt: skip
    stamps = np.zeros((5, 2), np.int64)
    for _ in range(100):
        pool.run(launch, stamps)
        assert stamps[2, 0] >= stamps[1, 1]  # tile 2 waits for two of the three signals: tiles 0 and 1


@pytest.mark.parametrize("count", [3, 4])
def test_more_workers_than_cpus_finish(count: int) -> None:
    with Workers(count) as workers:
        assert workers.scarce == (len(os.sched_getaffinity(0)) < count)
        graphs = [dag(seed, count) for seed in range(3)] + [dag(9, count, level=20)]
        for graph in graphs * 5:
            graph.check(workers)


def test_parked_helpers_use_no_cpu_and_wake(pool: Workers) -> None:
    graph = dag(10, 2)
    graph.check(pool)
    time.sleep(0.01)
    before = time.process_time()
    for _ in range(6):
        time.sleep(0.05)
        graph.check(pool)
    assert time.process_time() - before < 0.15  # spinning would take 0.3


def test_a_wake_up_is_never_lost_at_the_edge_of_sleep() -> None:
    """Launches follow each other after about as long as a helper takes to go to sleep; a lost one hangs for ever."""
    graph = dag(11, 2, tiles=8)
    for park_ns in range(0, 20_000, 250):
        with Workers(2, spin_ns=park_ns, park_ns=park_ns) as workers:
            for launch in range(1_000):
                workers.run(graph.launch)
                for _ in range(launch % 50):
                    pass
            graph.check(workers)


def test_stamps_are_in_order_and_do_not_overlap_on_a_worker(pool: Workers) -> None:
    graph = dag(12, 2)
    stamps = np.zeros((200, 2), np.int64)
    begin = time.monotonic_ns()
    pool.run(graph.launch, stamps)
    end = time.monotonic_ns()
    assert (stamps[:, 0] <= stamps[:, 1]).all()
    assert begin <= stamps.min() <= stamps.max() <= end
    arrays = graph.launch._arrays
    for worker in range(2):
        first, last = arrays[kernels.L_QUEUE_PTR][worker : worker + 2]
        own = stamps[arrays[kernels.L_QUEUE][first:last]]
        assert (own[1:, 0] >= own[:-1, 1]).all()
    wait_ptr, wait_event = arrays[kernels.L_WAIT_PTR], arrays[kernels.L_WAIT_EVENT]
    for tile in range(200):
        for event in wait_event[wait_ptr[tile] : wait_ptr[tile + 1]]:  # event t is tile t's
            assert stamps[tile, 0] >= stamps[event, 1]


def test_an_interrupt_from_the_keyboard_leaves_all_usable(pool: Workers) -> None:
    graph = dag(13, 2)

    def repeat() -> None:
        while True:
            pool.run(graph.launch)

    for _ in range(5):
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            repeat()
        timer.join()
        graph.check(pool)


def test_threads_that_share_a_pool_take_turns(pool: Workers) -> None:
    graphs = [dag(seed, 2) for seed in range(3)]
    failures: list[BaseException] = []

    def repeat(graph: Dag) -> None:
        try:
            for _ in range(30):
                graph.check(pool)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_pools_cannot_run_one_launch_at_once(pool: Workers) -> None:
    slow = launch_of([[kernels.TOUCH, 0, 1 << 22]] * 500, np.zeros(1 << 22, np.float32))  # about half a second
    thread = threading.Thread(target=pool.run, args=(slow,))
    thread.start()
    time.sleep(0.02)
    with Workers(1) as other, pytest.raises(MeasureError, match=r"being run by other workers"):
        other.run(slow)
    thread.join()
    pool.run(slow)


# -- life of a pool ------------------------------------------------------------------------------------------------


def test_close_ends_the_threads_and_can_be_repeated() -> None:
    workers = Workers(3)
    names = {f"workbench-worker-{w}" for w in (1, 2)}
    launch = launch_of([[kernels.NOP]], np.zeros(1, np.float32))
    workers.run(launch)
    before = sum(t.name in names for t in threading.enumerate())
    workers.close()
    workers.close()
    assert sum(t.name in names for t in threading.enumerate()) == before - 2
    with pytest.raises(MeasureError, match=r"closed; make new ones"):
        workers.run(launch)


def test_a_pool_can_be_closed_while_another_thread_uses_it() -> None:
    graph, ends = dag(14, 2), []
    workers = Workers(2)

    def repeat() -> None:
        try:
            while True:
                graph.check(workers)
        except MeasureError as error:
            ends.append(str(error))

    thread = threading.Thread(target=repeat)
    thread.start()
    time.sleep(0.02)
    workers.close()
    thread.join(timeout=30)
    assert ends == ["these workers are closed; make new ones"]


def test_a_forgotten_pool_is_collected_with_its_threads() -> None:
    before = threading.active_count()
    Workers(2)
    assert threading.active_count() == before


def test_affinity_is_only_borrowed(pool: Workers) -> None:
    allowed = os.sched_getaffinity(0)
    with pool.pinned_caller():
        assert pool.scarce or os.sched_getaffinity(0) == {pool.cpus[0]}
    assert os.sched_getaffinity(0) == allowed
    assert pool.scarce or len(set(pool.cpus)) == pool.count


def in_new_process(code: str) -> str:
    """What a fresh interpreter prints; it fails if that hangs."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_an_interpreter_leaves_though_a_pool_is_open_busy_or_asleep_and_a_fork_is_refused() -> None:
    code = """
import os, time, threading, warnings
import numpy as np
from workbench.errors import MeasureError
from workbench.measure.cpu_probes import nop_launch
from workbench.measure.cpu_runtime import Workers
asleep, awake, busy = Workers(2), Workers(2), Workers(2)
launch = nop_launch(np.arange(1000) % 2, 2, chained=True)
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    try:
        awake.run(launch)
    except MeasureError as error:
        print(error)
    with Workers(2) as fresh:
        fresh.run(launch)
    raise SystemExit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
other = nop_launch(np.arange(1000) % 2, 2, chained=True)
def forever():
    while True:
        busy.run(other)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
awake.run(launch)
print("left")
"""
    assert in_new_process(code).split("\n")[:2] == [
        "these workers were started before a fork, which copies no threads; make new ones",
        "left",
    ]


def test_a_second_process_compiles_nothing() -> None:
    code = """
from workbench.measure import cpu_kernels as kernels
bodies = kernels.compile_all()
print(all(body.cache_hits == 1 for body in bodies), sum(kernels.enter.stats.cache_misses.values()))
"""
    assert in_new_process(code).split() == ["True", "0"]


def test_a_cache_that_cannot_be_written_is_a_warning() -> None:
    code = """
import warnings
from numba.core import caching
caching.CacheImpl._locator_classes = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from workbench.measure import cpu_kernels as kernels
    kernels.prepare(0, 0)
print(len(caught), caught[0].message)
"""
    assert in_new_process(code).strip() == (
        "1 numba has nowhere to write its cache; the CPU runtime compiles anew in each process"
    )


# -- what is refused -----------------------------------------------------------------------------------------------


def test_queues_that_wait_for_each_other_are_refused_with_the_place() -> None:
    nops, floats = [[kernels.NOP]] * 4, np.zeros(1, np.float32)
    crossed = {"waits": [[1], [], [0], []], "signals": [NO_EVENT, 0, NO_EVENT, 1], "threshold": [1, 1]}
    message = r"deadlock after 0 of 4 tiles: worker 0 stays at tile 0 for event 1 at 0 of 1; worker 1 stays at tile 2"
    with pytest.raises(MeasureError, match=message):
        launch_of(nops, floats, owner=[0, 0, 1, 1], workers=2, **crossed)  # type: ignore[arg-type]
    with pytest.raises(MeasureError, match=r"worker 0 stays at tile 0 for event 0"):
        launch_of(nops[:1], floats, waits=[[0]], signals=[0], threshold=[1])
    launch_of(nops, floats, owner=[0, 1, 1, 1], workers=2, **crossed)  # type: ignore[arg-type]


def test_a_replay_against_its_order_is_refused() -> None:
    nops, floats = [[kernels.NOP]] * 3, np.zeros(1, np.float32)
    with pytest.raises(MeasureError, match=r"tile 1 of operator 0 waits for event 0, which fires in operator 0"):
        launch_of(nops, floats, waits=[[], [0], []], signals=[0] + [NO_EVENT] * 2, threshold=[1], operators=[0, 2, 3])
    with pytest.raises(MeasureError, match=r"tile 1 of operator 1 waits for event 0, which fires in operator 2"):
        launch_of(nops, floats, waits=[[], [0], []], signals=[0, NO_EVENT, 0], threshold=[2], operators=[0, 1, 2, 3])


BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "a desc of int32": ({"desc": np.zeros((2, 28), np.int32)}, r"desc is int32 of 2 .* expected contiguous int64"),
    "a narrow desc": ({"desc": np.zeros((2, 27), np.int64)}, r"desc has 27 columns; a descriptor has 28"),
    "an unknown opcode": ({"desc": np.full((2, 28), 8)}, r"tile 0 has opcode 8; there are 0 … 7"),
    "a list": ({"queue": [0, 1]}, r"queue is a list; expected a numpy array"),
    "signed indices": ({"signal": np.zeros(2, np.int64)}, r"signal is int64 .* expected contiguous uint32"),
    "strided indices": ({"queue": np.zeros(4, np.uint32)[::2]}, r"queue is strided uint32"),
    "a tile twice": ({"queue": np.zeros(2, np.uint32)}, r"queue must hold each of the 2 tiles exactly once"),
    "a tile too many": ({"queue": np.array([0, 2], np.uint32)}, r"queue must hold each of the 2 tiles exactly once"),
    "no worker": ({"queue_ptr": np.zeros(1, np.uint32)}, r"queue_ptr must rise from 0 to 2"),
    "queues that fall": ({"queue_ptr": np.array([0, 3, 2], np.uint32)}, r"queue_ptr must rise from 0 to 2"),
    "waits of another length": ({"wait_ptr": np.zeros(2, np.uint32)}, r"wait_ptr must rise from 0 to 1"),
    "waits for a stranger": ({"wait_event": np.array([3], np.uint32)}, r"wait_event names event 3; there are 1"),
    "a signal to a stranger": ({"signal": np.array([0, 7], np.uint32)}, r"signal names event 7; there are 1"),
    "an event out of reach": ({"threshold": np.array([2], np.uint32)}, r"event 0 can never fire: .* is 2 and 1 tiles"),
    "floats of float64": ({"floats": np.zeros(8)}, r"floats is float64"),
    "a matrix for floats": ({"floats": np.zeros((2, 4), np.float32)}, r"floats is float32 of 2 dimensions"),
    "ints of int64": ({"ints": np.zeros(8, np.int64)}, r"ints is int64"),
    "a replay without operators": ({"mode": Mode.REPLAY}, r"a replay needs op_ptr"),
    "operators that end early": (
        {"mode": Mode.REPLAY, "op_ptr": np.array([0, 1], np.uint32)},
        r"op_ptr must rise from 0 to 2",
    ),
}


def parts() -> dict[str, object]:
    """Two tiles that do nothing, the second waiting for the first."""
    return {
        "desc": np.zeros((2, 28), np.int64),
        "queue_ptr": np.array([0, 2], np.uint32),
        "queue": np.array([0, 1], np.uint32),
        "wait_ptr": np.array([0, 0, 1], np.uint32),
        "wait_event": np.array([0], np.uint32),
        "threshold": np.array([1], np.uint32),
        "signal": np.array([0, NO_EVENT], np.uint32),
        "floats": np.zeros(8, np.float32),
        "ints": np.zeros(8, np.int32),
    }


@pytest.mark.parametrize("what", BROKEN)
def test_broken_arrays_are_refused_by_name(what: str) -> None:
    change, message = BROKEN[what]
    Launch(**parts())  # type: ignore[arg-type]
    with pytest.raises(MeasureError, match=message):
        Launch(**{**parts(), **change})  # type: ignore[arg-type]


def test_what_was_checked_is_what_runs(pool: Workers) -> None:
    arrays = parts()
    launch = Launch(**arrays)  # type: ignore[arg-type]
    for name in ("desc", "queue_ptr", "queue", "wait_ptr", "wait_event", "threshold", "signal"):
        arrays[name].fill(1000)  # type: ignore[attr-defined]
    pool.run(launch)


def test_arenas_that_cannot_be_written_are_refused() -> None:
    floats = np.zeros(8, np.float32)
    floats.flags.writeable = False
    with pytest.raises(MeasureError, match=r"floats is read-only"):
        Launch(**{**parts(), "floats": floats})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_a_tile_that_would_leave_the_arena_is_refused(name: str, seed: int) -> None:
    """Each offset is pushed out at either end; those of unused parts may be anything."""
    rng = np.random.default_rng([seed, *name.encode()])
    case = CASES[name](rng)
    whole = case.desc(case.box)
    launch_of([whole], case.arena, case.ints)
    offsets = {"matmul": (7, 11, 12), "attention": (7, 10, 11, 17), "gather": (12, 15), "conv": (7, 13, 14, 16)}
    offsets |= {"upconv": (7, 12, 14, 16)}
    for column in offsets[next(word for word in name.split() if word in offsets)]:
        for value in (-len(case.arena), len(case.arena), 1 << 62):
            broken = [*whole]
            broken[column] = value
            with pytest.raises(MeasureError, match=r"tile 0 \(\w+\): .* spans elements"):
                launch_of([broken], case.arena, case.ints)


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        ("matmul", 2, 0, r"tile 0 \(matmul\): columns 1 and 2 are the empty range 0:0; ranges are half-open"),
        ("matmul", 10, 0, r"K is 0; it must be at least 1"),
        ("matmul", 16, 4, r"epilogue is 4; there are 0 … 3"),
        ("matmul rope", 17, 3, r"must be whole heads of an even width, not of 3"),
        ("attention", 15, 0, r"group is 0"),
        ("attention", 16, -1, r"it sees no position"),
        ("gather", 11, 0, r"n_tables is 0"),
        ("gather", 7, 1 << 40, r"idx spans elements \d+ … \d+ of \d+ ints"),
        ("conv", 19, 3, r"epilogue is 3; there are 0 … 2"),
        ("conv", 3, -100, r"x spans elements -"),
        ("upconv", 13, 0, r"channels end at"),
    ],
)
def test_a_descriptor_that_makes_no_sense_is_refused(name: str, column: int, value: int, message: str) -> None:
    case = CASES[name](np.random.default_rng(0))
    desc = case.desc(case.box)
    desc[column] = value
    with pytest.raises(MeasureError, match=message):
        launch_of([desc], case.arena, case.ints)


def test_a_pool_refuses_what_does_not_fit(pool: Workers) -> None:
    floats = np.zeros(1, np.float32)
    with pytest.raises(MeasureError, match=r"queues for 3 workers, the pool has 2"):
        pool.run(launch_of([[kernels.NOP]] * 3, floats, owner=[0, 1, 2], workers=3))
    with pytest.raises(MeasureError, match=r"stamps is \(1, 2\); it must be writable and \(2, 2\)"):
        pool.run(launch_of([[kernels.NOP]] * 2, floats), np.zeros((1, 2), np.int64))
    with pytest.raises(MeasureError, match=r"0 workers asked for"):
        Workers(0)


def test_scratch_grows_with_the_largest_tile() -> None:
    rng = np.random.default_rng(3)
    case = CASES["conv"](rng)
    with Workers(2, scratch_floats=1) as workers:
        workers.run(launch_of([case.desc(case.box)], case.arena, case.ints))
        assert workers.scratch_floats > 1
    assert_close(case.arena, case.expected())


def test_overheads_are_measured_and_of_a_sane_order(pool: Workers) -> None:
    launch, parked = cpu_probes.launch_timing(pool, pool.count), cpu_probes.parked_launch_timing(pool)
    costs = [launch.ns, parked.ns, cpu_probes.fork_join_timing(pool).ns, cpu_probes.tile_ns(pool, 1)]
    assert all(0 < cost < 1e9 for cost in costs)
    assert cpu_probes.event_ns(pool, 2) >= 0
