"""Benchmarks of kernels alone on this machine: every tile body by shape, batch, position and configuration.

A tile is timed where it runs, by stamps around its body, in a launch that holds one operator over and over: before
each sample the workers together read as many bytes as all the model's weights, so that the operator's come from as far
away as they do between two steps of the model, then the operator's inputs. All workers of the configuration run their tiles at once, so what they take from each other is
in the times. No launch holds two operators of the program: nothing end to end is seen here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from workbench.compose import Configuration
from workbench.cost import COLUMNS, CostTable
from workbench.hardware import Device, Overheads, Provenance, this_machine
from workbench.lower.lowering import operator_tiles
from workbench.measure.cpu_executor import TORCH_THREADS, bare_launch
from workbench.measure.cpu_model import COLUMNS as DESCRIPTOR_COLUMNS
from workbench.measure.cpu_model import NOP, TOUCH, CpuModel
from workbench.measure.cpu_runtime import Launch, Workers
from workbench.models.demo_tts_torch import DemoTTS, State
from workbench.program import Attention, Call, Program, calls

PASSES = 2  # over all benchmarks, so that a drift between them shows
REPEATS = 12  # samples a pass of each call; operators in layers have as many calls as layers
SAMPLED_CALLS = 4
EAGER_REPEATS = 15
PROBE_TILES = 2_000
PROBE_REPEATS = 15

Tick = Callable[[str], None]
Row = tuple[str, int, int, str, int, npt.NDArray[np.int64]]


def configurations_of(workers: int) -> tuple[Configuration, ...]:
    """The configurations that are measured: one worker, all workers, all workers with two tiles each."""
    found = [Configuration(1)]
    if workers > 1:
        found += [Configuration(workers), Configuration(workers, 2)]
    return tuple(found)


def bench(
    module: DemoTTS,
    program: Program,
    batches: Sequence[int],
    workers: int,
    taken: str,
    tick: Tick = lambda done: None,
) -> tuple[Device, CostTable]:
    """Time every tile and operator alone, and the overheads of launching them; ``taken`` is the date to record.

    ``tick`` is called with what has just been done, once for each of ``steps(...)``.
    """
    passes: list[list[Row]] = [[] for _ in range(PASSES)]
    torch.set_num_threads(TORCH_THREADS)
    with Workers(workers) as pool:
        with pool.pinned_caller():
            overheads = _overheads(CpuModel(module, program, 1), pool, tick)
        for number in range(PASSES):
            for batch in batches:
                model = CpuModel(module, program, batch)
                state = _filled(model)
                mine: list[Row] = []
                with pool.pinned_caller():
                    for configuration in configurations_of(workers):
                        mine += _tile_rows(model, pool, configuration)
                        tick(f"pass {number + 1}, batch {batch}, tiles {configuration}")
                mine += _eager_rows(model, state)
                tick(f"pass {number + 1}, batch {batch}, eager")
                passes[number] += mine
    overheads["eager"] = {workers: _eager_overheads(module, program)}
    machine = {**this_machine(), "torch_threads": str(TORCH_THREADS)}
    device = Device(
        name="cpu", workers=workers, overheads=overheads, machine=machine, taken=taken, run_spread_frac=_drift(passes)
    )
    return device, CostTable(_summarise([row for mine in passes for row in mine]))


def steps(batches: Sequence[int], workers: int) -> int:
    """Number of ``tick`` calls that ``bench`` makes."""
    return PASSES * len(batches) * (len(configurations_of(workers)) + 1) + 1 + len({1, workers})


def _filled(model: CpuModel) -> State:
    """Arenas and torch state after one run of the whole model, so that every operator has real inputs."""
    text = np.random.default_rng(0).integers(0, model.config.text_vocab, (model.batch, model.config.prompt), np.int32)
    with torch.inference_mode():
        state = model.start(text)
        for call in calls(model.program.first):
            model.module.run(call.operator.name, state, call.index)
        for name in model.tensors:
            if name in state.t:
                model.view(name).copy_(state.t[name])
    return state


def _by_position(program: Program) -> Iterator[tuple[str, int, list[Call]]]:
    """Operators with the calls that cost alike: all of them, or for attention those at its first and last position."""
    found: dict[tuple[str, int], list[Call]] = {}
    for call in calls(program.first):
        position = call.position if isinstance(call.operator.shape, Attention) else 0
        found.setdefault((call.operator.name, position), []).append(call)
    for name, position in found:
        mine = [p for other, p in found if other == name]
        if position in (min(mine), max(mine)):
            some = found[name, position]
            yield name, position, some[:: max(1, len(some) // SAMPLED_CALLS)][:SAMPLED_CALLS]


def _tile_rows(model: CpuModel, pool: Workers, configuration: Configuration) -> list[Row]:
    rows: list[Row] = []
    for name, position, sample in _by_position(model.program):
        boxes = operator_tiles(sample[0].operator, model.batch, configuration)
        launch, where = _repeated(model, sample, configuration)
        stamps = np.zeros((launch.tiles, 2), np.int64)
        pool.run(launch, stamps)  # warms code and branch predictors; the weights are pushed out in between
        pool.run(launch, stamps)
        ns = (stamps[:, 1] - stamps[:, 0])[where].reshape(-1, len(boxes))
        rows += [(name, model.batch, position, str(configuration), tile, ns[:, tile]) for tile in range(len(boxes))]
    return rows


def _repeated(
    model: CpuModel, sample: list[Call], configuration: Configuration
) -> tuple[Launch, npt.NDArray[np.int64]]:
    """A replay of: read a model's worth, read the inputs, run one call; for each call in turn. And the calls' tiles."""
    operator, workers = sample[0].operator, configuration.workers
    boxes = operator_tiles(operator, model.batch, configuration)
    reads = [model.tensors[name] for name in operator.reads if name in model.tensors]
    flush = model.tensors["flush"]
    parts = [(flush.offset + i * (flush.size // workers), flush.size // workers) for i in range(workers)]
    desc: list[npt.NDArray[np.int64]] = []
    lane: list[int] = []
    op_ptr, where = [0], []
    for _ in range(REPEATS):
        for call in sample:
            for memory in (parts, *([(tensor.offset, tensor.size)] * workers for tensor in reads)):
                for offset, size in memory:
                    row = np.zeros(DESCRIPTOR_COLUMNS, np.int64)
                    row[:3] = TOUCH, offset, size
                    desc.append(row)
                lane += range(workers)
                op_ptr.append(len(desc))
            where += range(len(desc), len(desc) + len(boxes))
            desc += [model.descriptor(call, box) for box in boxes]
            lane += [i % workers for i in range(len(boxes))]
            op_ptr.append(len(desc))
    launch = bare_launch(model, np.array(desc), np.array(lane, np.uint32), workers, np.array(op_ptr, np.uint32))
    return launch, np.array(where)


def _eager_rows(model: CpuModel, state: State) -> list[Row]:
    """Torch's own time of each operator, called alone; its layers take turns, so that their weights do too."""
    rows: list[Row] = []
    run = model.module.run
    with torch.inference_mode():
        for name, position, sample in _by_position(model.program):
            ns: list[int] = []
            for repeat in range(EAGER_REPEATS + 2):
                for call in sample:
                    state.context.clear()
                    begun = time.perf_counter_ns()
                    run(name, state, call.index)
                    if repeat > 1:
                        ns.append(time.perf_counter_ns() - begun)
            rows.append((name, model.batch, position, "eager", 0, np.array(ns, np.int64)))
    return rows


def _drift(passes: list[list[Row]]) -> float:
    """Relative standard deviation of a benchmark's total between passes, over batches and treatments.

    The root mean square of log(total of a pass / total of the next), over √2 as both vary.
    """
    totals = []
    for mine in passes:
        total: dict[tuple[int, str], float] = {}
        for _, batch, _, how, _, ns in mine:
            total[batch, how] = total.get((batch, how), 0.0) + float(np.median(ns))
        totals.append(np.log(list(total.values())))
    return float(np.sqrt(np.mean(np.square(np.diff(totals, axis=0)))) / np.sqrt(2))


def _summarise(rows: list[Row]) -> pd.DataFrame:
    pooled: dict[tuple[str, int, int, str, int], list[npt.NDArray[np.int64]]] = {}
    for *key, ns in rows:
        pooled.setdefault(tuple(key), []).append(ns)  # type: ignore[arg-type]
    table = []
    for key, parts in pooled.items():
        ns = np.concatenate(parts)
        low, median, high = np.maximum(1, np.rint(np.quantile(ns, [0.25, 0.5, 0.75]))).astype(np.int64)
        table.append((*key, median, low, high, len(ns)))
    return pd.DataFrame(table, columns=list(COLUMNS))


# -- overheads -----------------------------------------------------------------------------------------------------


def _median_ns(action: Callable[[], object]) -> tuple[float, float]:
    """Median of PROBE_REPEATS timings, ns, and half their interquartile range over it."""
    action()
    times = []
    for _ in range(PROBE_REPEATS):
        begun = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - begun)
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
    return float(median), float((high - low) / 2 / max(1.0, median))


def _empty_tiles(model: CpuModel, workers: int, tiles: int, chained: bool) -> Launch:
    """NOP tiles dealt to the workers in turn; chained: each waits for the one before."""
    desc = np.zeros((tiles, DESCRIPTOR_COLUMNS), np.int64)
    desc[:, 0] = NOP
    lane = np.arange(tiles, dtype=np.uint32) % workers
    pointer = np.concatenate([[0], np.cumsum(np.bincount(lane, minlength=workers))]).astype(np.uint32)
    waits = np.maximum(np.arange(tiles + 1) - 1, 0) if chained else np.zeros(tiles + 1)
    return Launch(
        desc, pointer, np.argsort(lane, kind="stable").astype(np.uint32), waits.astype(np.uint32),
        np.arange(tiles - 1 if chained else 0, dtype=np.uint32), np.ones(tiles, np.uint32),
        np.arange(tiles, dtype=np.uint32), floats=model.floats, ints=model.ints,
    )  # fmt: skip


def _overheads(model: CpuModel, pool: Workers, tick: Tick) -> dict[str, dict[int, Overheads]]:
    """Empty launches, empty tiles and chains of empty tiles: what is left when no tile computes."""
    found: dict[str, dict[int, Overheads]] = {"megakernel": {}, "replay": {}}
    for workers in sorted({1, pool.count}):
        single = _empty_tiles(model, workers, workers, chained=False)
        launch, spread = _median_ns(lambda single=single: pool.run(single))  # type: ignore[misc]
        many = _empty_tiles(model, workers, PROBE_TILES * workers, chained=False)
        free, _ = _median_ns(lambda many=many: pool.run(many))  # type: ignore[misc]
        chain = _empty_tiles(model, workers, PROBE_TILES, chained=True)
        hops, _ = _median_ns(lambda chain=chain: pool.run(chain))  # type: ignore[misc]
        dispatch = max(0.0, (free - launch) / (PROBE_TILES - 1))
        event = max(0.0, (hops - launch) / (PROBE_TILES - 1) - dispatch)
        found["megakernel"][workers] = _measured(launch - dispatch, 0, dispatch, event, spread, "empty launches and tiles")
        tick(f"overheads, {workers} workers")
    workers = pool.count
    gap, spread = _fork_join(model, pool)
    mega = found["megakernel"][workers]
    found["replay"][workers] = _measured(
        mega.launch_ns, max(0.0, gap - mega.dispatch_ns), mega.dispatch_ns, 0, spread, "replay of empty operators"
    )
    tick("overheads, replay")
    return found


def _fork_join(model: CpuModel, pool: Workers) -> tuple[float, float]:
    """Time of one empty operator in a replay, ns, with its relative spread."""
    operators, workers = PROBE_TILES // 4, pool.count

    def replay(count: int) -> Launch:
        desc = np.zeros((count * workers, DESCRIPTOR_COLUMNS), np.int64)
        lane = np.tile(np.arange(workers, dtype=np.uint32), count)
        return bare_launch(model, desc, lane, workers, (np.arange(count + 1) * workers).astype(np.uint32))

    one, many = replay(1), replay(operators)
    short, _ = _median_ns(lambda: pool.run(one))
    long, spread = _median_ns(lambda: pool.run(many))
    return max(0.0, (long - short) / (operators - 1)), spread


def _eager_overheads(module: DemoTTS, program: Program) -> Overheads:
    """An eager region's own cost: handing one tensor over to the next region."""
    model = CpuModel(module, program, 1)
    view, source = model.view("talker.x"), torch.zeros(1, 1, model.config.hidden)
    with torch.inference_mode():
        ns, spread = _median_ns(lambda: view.copy_(source))
    return _measured(0, 0, 0, 0, spread, "copy of one tensor", drain=ns)


def _measured(
    launch: float, gap: float, dispatch: float, event: float, spread: float, source: str, drain: float = 0
) -> Overheads:
    ns = [max(0, round(value)) for value in (launch, gap, dispatch, event, drain)]
    return Overheads(
        launch_ns=ns[0], gap_ns=ns[1], dispatch_ns=ns[2], event_ns=ns[3], signal_ns=0, drain_ns=ns[4],
        spread_frac=spread, source=f"{source}, workbench bench", provenance=Provenance.MEASURED,
    )  # fmt: skip
