"""Run a composition of demo_tts on this machine's CPUs: regions become launches and torch calls, in program order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch

from workbench.compose import Composition, Configuration, Kind, Region, check_composition, levels
from workbench.lower.lowering import lower_calls, operator_cut
from workbench.measure.cpu_launch import Launch, Mode
from workbench.measure.cpu_model import CpuModel
from workbench.measure.cpu_probes import nop_launch
from workbench.measure.cpu_runtime import Workers
from workbench.models.demo_tts_torch import State
from workbench.program import Call, Item, Loop, Operator, calls, items

# Torch's own pool spins on the cores that the workers are pinned to, and each stalls the other by whole time slices.
# Two torch threads on two shared cores took 780 ms at batch 1 where one took 26 ms, and 35 ms at batch 8 against 39 ms.
TORCH_THREADS = 1

Step = Callable[[State], None]
KernelConfiguration = Callable[[Call], Configuration]


def megakernel_launch(model: CpuModel, sequence: tuple[Call, ...], configuration: Configuration) -> Launch:
    """One launch that runs a sequence of calls, its tiles synchronised by events."""
    lowered = lower_calls(sequence, (len(sequence),), model.batch, configuration)
    tiles, events = lowered.tiles, lowered.events
    desc = np.array([model.descriptor(tiles.calls[c], box) for c, box in zip(tiles.call, tiles.boxes, strict=True)])
    queue_ptr, queue = _queues(tiles.lane, configuration.workers)
    return Launch(
        desc, queue_ptr, queue, events.wait_ptr, events.wait_event, events.threshold, events.signal,
        floats=model.floats, ints=model.ints,
    )  # fmt: skip


def replay_launch(model: CpuModel, sequence: tuple[Call, ...], workers: int, chosen: list[Configuration]) -> Launch:
    """One launch that runs each call as a kernel of its own under its own configuration: fork, tiles, join."""
    rows: list[npt.NDArray[np.int64]] = []
    lanes: list[int] = []
    op_ptr = [0]
    for call, configuration in zip(sequence, chosen, strict=True):
        boxes = operator_cut(call.operator, model.batch, configuration).boxes()
        rows.extend(model.descriptor(call, box) for box in boxes)
        lanes.extend(i % configuration.workers for i in range(len(boxes)))
        op_ptr.append(len(rows))
    return bare_launch(model, np.array(rows), np.array(lanes, np.uint32), workers, np.array(op_ptr, np.uint32))


def bare_launch(
    model: CpuModel,
    desc: npt.NDArray[np.int64],
    lane: npt.NDArray[np.uint32],
    workers: int,
    op_ptr: npt.NDArray[np.uint32],
) -> Launch:
    """A replay of given tiles, without events."""
    queue_ptr, queue = _queues(lane, workers)
    nothing = np.zeros(0, np.uint32)
    return Launch(
        desc, queue_ptr, queue, np.zeros(len(desc) + 1, np.uint32), nothing, np.ones(1, np.uint32),
        np.zeros(len(desc), np.uint32), floats=model.floats, ints=model.ints, mode=Mode.REPLAY, op_ptr=op_ptr,
    )  # fmt: skip


def _queues(lane: npt.NDArray[np.uint32], workers: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    queue = np.argsort(lane, kind="stable").astype(np.uint32)
    pointer = np.concatenate([[0], np.cumsum(np.bincount(lane, minlength=workers))]).astype(np.uint32)
    return pointer, queue


class CpuExecutor:
    """A composition made ready to run: ``run`` gives its time to first output, ``pcm`` what it said.

    Workers are awake when a run begins, as those of a server that polls for requests are; an empty launch before the
    clock starts sees to it.

    ``kernel_configuration`` says under which configuration a replay runs each kernel. Launches are made once and kept.
    """

    def __init__(
        self,
        model: CpuModel,
        composition: Composition,
        workers: Workers,
        kernel_configuration: KernelConfiguration,
        launches: dict[object, Launch] | None = None,
    ) -> None:
        check_composition(model.program, composition)
        self.model, self.workers, self.kernel_configuration = model, workers, kernel_configuration
        self.launches: dict[object, Launch] = {} if launches is None else launches
        self.region_of = {name: region for region in composition.regions for name in region.items}
        self.steps: list[Step] = [step for step, _ in self._steps(items(model.program.first), {})]
        self.state: State | None = None
        self._wake = nop_launch(np.zeros(0, np.int64), workers.count)
        self._eager_end = composition.regions[-1].arm == "eager"

    def _steps(self, level: tuple[Item, ...], index: Mapping[str, int]) -> Iterator[tuple[Step, Region]]:
        position = 0
        while position < len(level):
            item = level[position]
            region = self.region_of.get(item.name)
            if region is None:
                assert isinstance(item, Loop)
                for i in range(item.count):
                    yield from self._steps(items(item.body), {**index, item.name: i})
                position += 1
                continue
            run = level[position : position + len(region.items)]
            sequence = tuple(call for node in run for call in calls((node,), index))
            yield self._step(region, sequence, index), region
            position += len(run)

    def _step(self, region: Region, sequence: tuple[Call, ...], index: Mapping[str, int]) -> Step:
        if region.arm == "eager":
            return self._eager(sequence)
        key = (region, tuple(sorted(index.items())))
        if key not in self.launches:
            if region.kind is Kind.MEGAKERNEL:
                assert region.configuration is not None
                self.launches[key] = megakernel_launch(self.model, sequence, region.configuration)
            else:
                chosen = [self.kernel_configuration(call) for call in sequence]
                self.launches[key] = replay_launch(self.model, sequence, self.workers.count, chosen)
        launch, workers = self.launches[key], self.workers
        return lambda state: workers.run(launch)

    def _eager(self, sequence: tuple[Call, ...]) -> Step:
        """Torch calls; tensors come in as views of the arena, and those that a later region reads are copied back."""
        run = self.model.module.run
        todo = [(call.operator.name, call.index) for call in sequence]
        inside = {call.operator.name for call in sequence}
        read_outside = {
            tensor
            for op in self.model.program.operators().values()
            if op.name not in inside or self._recurs(op)
            for tensor in op.reads
        }
        written: dict[str, None] = {}
        brought: dict[str, torch.Tensor] = {}
        for call in sequence:
            for tensor in call.operator.reads:
                if tensor not in written and tensor in self.model.tensors and "kv" not in tensor:
                    brought.setdefault(tensor, self.model.view(tensor))
            written |= dict.fromkeys(call.operator.writes)
        exported = [
            (name, self.model.view(name))
            for name in written
            if name in read_outside and name in self.model.tensors and "kv" not in name
        ]

        def step(state: State) -> None:
            state.t.update(brought)
            for name, index in todo:
                run(name, state, index)
            for name, view in exported:
                view.copy_(state.t[name])

        return step

    def _recurs(self, op: Operator) -> bool:
        """Whether an operator's region runs more than once, so that its next launch may read what this one wrote."""
        for level in levels(self.model.program):
            region = next((self.region_of[i.name] for i in level.items if i.name in self.region_of), None)
            if region is not None and level.around and op.name in {i.name for i in level.items}:
                return True
        return False

    def run(self, text: npt.NDArray[np.int32]) -> int:
        """Time to first output of one batch, ns: from the prompt in place to the PCM of the first chunk."""
        with torch.inference_mode():
            state = self.state = self.model.start(text)
            self.workers.run(self._wake)
            begun = time.perf_counter_ns()
            for step in self.steps:
                step(state)
            return time.perf_counter_ns() - begun

    def pcm(self) -> npt.NDArray[np.float32]:
        """PCM (B, samples) of the last run, a copy."""
        assert self.state is not None
        if self._eager_end:
            return self.state.t["pcm"][:, 0].numpy().copy()
        return self.model.pcm().copy()

    def codes(self) -> npt.NDArray[np.int32]:
        """Codes (B, frames, codebooks) of the last run, a copy."""
        return self.model.codes()[:, 1:].numpy().copy()
