"""Benchmarks of kernels alone on this machine: every tile body by shape, batch, position and configuration.

A tile is timed where it runs, by stamps around its body, in a launch that holds one operator over and over. Before
each sample the workers together read as many bytes as all the model's weights, so that the operator's come from as
far away as they do between two steps of the model, then the operator's inputs. All workers of the configuration run
their tiles at once, so what they take from each other is in the times. No launch holds two operators of the program:
nothing end to end is seen here.
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
from workbench.lower.lowering import operator_cut
from workbench.measure import cpu_probes
from workbench.measure.cpu_executor import TORCH_THREADS, bare_launch
from workbench.measure.cpu_launch import Launch
from workbench.measure.cpu_model import COLUMNS as DESCRIPTOR_COLUMNS
from workbench.measure.cpu_model import TOUCH, CpuModel
from workbench.measure.cpu_runtime import Workers
from workbench.models.demo_tts_torch import DemoTTS, State
from workbench.program import Call, Program, calls
from workbench.shapes import Attention

PASSES = 2  # over all benchmarks, so that a drift between them shows
REPEATS = 12  # samples a pass of each call; operators in layers have as many calls as layers
SAMPLED_CALLS = 4
EAGER_REPEATS = 15

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
            overheads = _overheads(pool, tick)
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
        boxes = operator_cut(sample[0].operator, model.batch, configuration).boxes()
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
    boxes = operator_cut(operator, model.batch, configuration).boxes()
    reads = [model.tensors[name] for name in operator.reads if name in model.tensors]
    flush = model.tensors["flush"]
    parts = [(flush.offset + i * (flush.size // workers), flush.size // workers) for i in range(workers)]
    desc: list[npt.NDArray[np.int64]] = []
    lane: list[int] = []
    op_ptr = [0]
    where: list[int] = []
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
    for operator, batch, position, how, tile, ns in rows:
        pooled.setdefault((operator, batch, position, how, tile), []).append(ns)
    table = []
    for key, parts in pooled.items():
        ns = np.concatenate(parts)
        low, median, high = np.maximum(1, np.rint(np.quantile(ns, [0.25, 0.5, 0.75]))).astype(np.int64)
        table.append((*key, median, low, high, len(ns)))
    return pd.DataFrame(table, columns=list(COLUMNS))


# -- overheads -----------------------------------------------------------------------------------------------------


def _overheads(pool: Workers, tick: Tick) -> dict[str, dict[int, Overheads]]:
    """Empty launches, empty tiles and chains of empty tiles: what is left when no tile computes."""
    found: dict[str, dict[int, Overheads]] = {"megakernel": {}, "replay": {}}
    for workers in sorted({1, pool.count}):
        launch, dispatch = cpu_probes.launch_timing(pool, workers), cpu_probes.tile_ns(pool, workers)
        event = cpu_probes.event_ns(pool, workers)
        found["megakernel"][workers] = _measured(
            launch.ns, 0, dispatch, event, launch.spread_frac, "empty launches and tiles"
        )
        tick(f"overheads, {workers} workers")
    mega, fork_join = found["megakernel"][pool.count], cpu_probes.fork_join_timing(pool)
    gap = max(0.0, fork_join.ns - mega.dispatch_ns)
    found["replay"][pool.count] = _measured(
        mega.launch_ns, gap, mega.dispatch_ns, 0, fork_join.spread_frac, "replay of empty operators"
    )
    tick("overheads, replay")
    return found


def _eager_overheads(module: DemoTTS, program: Program) -> Overheads:
    """An eager region's own cost: handing one tensor over to the next region."""
    model = CpuModel(module, program, 1)
    view, source = model.view("talker.x"), torch.zeros(1, 1, model.config.hidden)
    times = []
    with torch.inference_mode():
        for _ in range(100):
            begun = time.perf_counter_ns()
            view.copy_(source)
            times.append(time.perf_counter_ns() - begun)
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
    return _measured(0, 0, 0, 0, float((high - low) / 2 / median), "copy of one tensor", drain=float(median))


def _measured(
    launch: float, gap: float, dispatch: float, event: float, spread: float, source: str, drain: float = 0
) -> Overheads:
    ns = [max(0, round(value)) for value in (launch, gap, dispatch, event, drain)]
    return Overheads(
        launch_ns=ns[0], gap_ns=ns[1], dispatch_ns=ns[2], event_ns=ns[3], signal_ns=0, drain_ns=ns[4],
        spread_frac=spread, source=f"{source}, workbench bench", provenance=Provenance.MEASURED,
    )  # fmt: skip
