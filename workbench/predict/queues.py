"""Levels of a program as queues of tiles with their times: where lowering and costs meet.

On the CPU a tile's time is not split into weights, activations and arithmetic (a benchmark cannot tell them apart
there): all of it is ``compute``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from workbench.compose import Configuration, Level, levels, operators_in
from workbench.cost import Costs, CostTable, TileCosts
from workbench.cost.resources import Held
from workbench.errors import MeasureError, WorkbenchError
from workbench.hardware import Device, Overheads, Provenance, worst
from workbench.lower import Lowered, lower
from workbench.lower.lowering import call_steps, level_calls, steps
from workbench.program import Call, Operator, Program
from workbench.shapes import Attention
from workbench.simulate import Mechanism, TileQueue

HOST_RULE = "an eager call's time above the same operator's fastest tiles"
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LevelQueue:
    """One level run in one way: its tiles with their times, and how its regions are launched.

    ``calls`` are those that run (an operator split along its reduction is two); ``item_stop`` is their number up to
    each item's end.
    """

    queue: TileQueue
    mechanism: Mechanism
    calls: tuple[Call, ...]
    item_stop: tuple[int, ...]
    provenance: Provenance
    spread_frac: Mapping[str, float]
    host_ns: Times  # (calls,) the part of a call's time that is the host's
    streams: npt.NDArray[np.bool_]  # (tiles,) bodies that are as long as the loads of weights within them

    def ops(self, start: int, stop: int) -> tuple[int, int]:
        """Calls of the items [start, stop)."""
        return (self.item_stop[start - 1] if start else 0), self.item_stop[stop - 1]


def relevant_loops(level: Level) -> tuple[str, ...]:
    """The loops around a level whose index changes what its operators cost."""
    used = {op.position_loop for item in level.items for op in operators_in(item) if isinstance(op.shape, Attention)}
    return tuple(loop.name for loop in level.around if loop.name in used)


def executions(level: Level) -> list[tuple[dict[str, int], int]]:
    """How often a level's body runs: a loop index for each distinct cost, and its number of times."""
    relevant = relevant_loops(level)
    times = prod(loop.count for loop in level.around if loop.name not in relevant)
    fixed = {loop.name: 0 for loop in level.around}
    ranges = [range(loop.count) for loop in level.around if loop.name in relevant]
    return [({**fixed, **dict(zip(relevant, point, strict=True))}, times) for point in product(*ranges)]


class LevelQueues:
    """Queues of one program on one device at one batch, kept once built.

    ``configurations`` and ``arms`` bound what regions may be; by default all that the table has figures for, of which
    ``measured`` are those that fit the device. ``kernels`` are the configurations that conventional kernels may take.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        table: Costs,
        batch: int,
        configurations: tuple[Configuration, ...] | None = None,
        arms: tuple[str, ...] | None = None,
    ) -> None:
        if batch < 1:
            raise WorkbenchError(f"batch {batch}: at least one request is needed")
        self.program, self.device, self.table, self.batch = program, device, table, batch
        self.measured = tuple(c for c in table.configurations if c.workers <= device.workers)
        self.kernels = tuple(c for c in table.kernel_configurations if c.workers <= device.workers)
        self.configurations = self.measured if configurations is None else configurations
        self.arms = device.arms if arms is None else arms
        self.levels = levels(program)
        self.place = {item.name: (d, i) for d, level in enumerate(self.levels) for i, item in enumerate(level.items)}
        self.relevant = tuple(map(relevant_loops, self.levels))
        self._queues: dict[tuple[int, tuple[int, ...], str, Held | None], LevelQueue] = {}
        self._kernel_queues: dict[tuple[tuple[int, int, Configuration], ...], tuple[TileQueue, list[TileCosts]]] = {}
        self._slowest: dict[tuple[int, int, Configuration, int], list[int]] = {}
        self._sequences: dict[tuple[int, tuple[int, ...]], tuple[tuple[Call, ...], tuple[int, ...]]] = {}
        self._structures: dict[tuple[int, Configuration], TileQueue] = {}
        self._lowerings: dict[tuple[int, Configuration], Lowered] = {}
        self._best: dict[tuple[str, str, int], Configuration] = {}

    @cached_property
    def treatments(self) -> tuple[str, ...]:
        """Everything that a region may be: configurations of a megakernel, then conventional arms."""
        return (*map(str, self.configurations), *self.arms)

    def index_key(self, depth: int, index: Mapping[str, int]) -> tuple[int, ...]:
        """The part of a loop index that a level's costs depend on."""
        return tuple(index[name] for name in self.relevant[depth])

    def level_queue(self, depth: int, index: Mapping[str, int], treatment: str, held: Held | None = None) -> LevelQueue:
        """A level of program text run as one treatment, with the loops around it at ``index``.

        A megakernel's tiles take what its blocks have ``held`` of an SM; None on a device that has no such thing.
        """
        key = (depth, self.index_key(depth, index), treatment, held)
        if key not in self._queues:
            if treatment[:1].isdigit():
                built = self._megakernel_queue(depth, index, Configuration.parse(treatment), held)
            else:
                built = self._conventional_queue(depth, index, treatment)
            self._queues[key] = built
        return self._queues[key]

    def _lowered(self, depth: int, configuration: Configuration) -> Lowered:
        """A level's tiles and events; they are the same wherever the loops around it are."""
        key = (depth, configuration)
        if key not in self._lowerings:
            level = self.levels[depth]
            nowhere = {loop.name: 0 for loop in level.around}
            self._lowerings[key] = lower(level.items, nowhere, self.batch, configuration)
        return self._lowerings[key]

    def _megakernel_queue(
        self, depth: int, index: Mapping[str, int], configuration: Configuration, held: Held | None
    ) -> LevelQueue:
        lowered = self._lowered(depth, configuration)
        tiles, events = lowered.tiles, lowered.events
        sequence = tuple(
            Call(call.operator, {**call.index, **index}) if call.operator.position_loop in index else call
            for call in tiles.calls
        )
        costs = self._call_tiles([(call, configuration) for call in sequence], held)
        weight_ns, input_ns, ns = _times(costs)
        if (depth, configuration) in self._structures:
            queue = self._structures[depth, configuration].retimed(weight_ns, input_ns, ns)
        else:
            queue = self._structures[depth, configuration] = TileQueue(
                lane=tiles.lane, op=tiles.call, signal=events.signal, wait_ptr=events.wait_ptr,
                wait_event=events.wait_event, threshold=events.threshold, weight_ns=weight_ns,
                input_ns=input_ns, compute_ns=ns, lanes=tiles.lanes, ops=len(sequence),
            )  # fmt: skip
        o = self.device.overhead("megakernel", configuration.workers)
        mechanism = _mechanism(o, prefetch_depth=self.device.prefetch_depth if held is None else held.pages)
        return _level_queue(queue, mechanism, sequence, lowered.item_stop, costs)

    def _call_tiles(self, steps: Sequence[tuple[Call, Configuration]], held: Held | None = None) -> list[TileCosts]:
        """Times of the tiles of some calls; calls alike hold the same object."""
        known: dict[tuple[int, int, Configuration], TileCosts] = {}
        found = []
        for call, configuration in steps:
            key = (id(call.operator), call.position, configuration)
            if key not in known:
                known[key] = self.table.call_tiles(call, self.batch, configuration, held)
            found.append(known[key])
        return found

    def _sequence(self, depth: int, index: Mapping[str, int]) -> tuple[tuple[Call, ...], tuple[int, ...]]:
        """A level's calls, and their number up to each item's end."""
        key = (depth, self.index_key(depth, index))
        if key not in self._sequences:
            self._sequences[key] = level_calls(self.levels[depth].items, index)
        return self._sequences[key]

    def _conventional_queue(self, depth: int, index: Mapping[str, int], arm: str) -> LevelQueue:
        sequence, item_stop = self._sequence(depth, index)
        o = self.device.overhead(arm, self.device.workers)
        if arm in self.device.whole_arms:
            costs = [self._whole(call, arm) for call in sequence]
            queue = _kernels_queue(costs, [np.zeros(1, np.uint32)] * len(sequence), 1)
            tiles = np.array([self.fastest_tiles_ns(call, arm) for call in sequence])
            host = np.maximum(0, np.array([int(cost.ns[0]) for cost in costs]) - tiles)
            mechanism = _mechanism(o, prefetch_depth=self.device.kernel_depth, barrier=True)
            return _level_queue(queue, mechanism, sequence, item_stop, costs, host)
        kernels = self._kernels(sequence, arm)
        ends = np.cumsum(list(map(len, kernels)))
        flat = [kernel for each in kernels for kernel in each]
        calls = tuple(call for call, _ in flat)
        key = tuple((id(call.operator), call.position, configuration) for call, configuration in flat)
        if key not in self._kernel_queues:  # arms mostly choose alike, and then only their gaps differ
            costs = self._call_tiles(flat)
            lanes = [_lanes(len(cost.ns), cfg) for cost, (_, cfg) in zip(costs, flat, strict=True)]
            self._kernel_queues[key] = _kernels_queue(costs, lanes, self.device.workers), costs
        queue, costs = self._kernel_queues[key]
        mechanism = _mechanism(
            o, prefetch_depth=self.device.kernel_depth, barrier=True,
            overlap=arm in self.device.waits_ns, wait_ns=self.device.waits_ns.get(arm, 0),
        )  # fmt: skip
        stops = tuple(int(ends[stop - 1]) for stop in item_stop)
        return _level_queue(queue, mechanism, calls, stops, costs)

    # -- one operator as a kernel --------------------------------------------------------------------------------

    def kernel_configuration(self, call: Call, arm: str) -> Configuration:
        """The configuration under which a conventional kernel of this call is fastest in ``arm``; fewer tiles if equal.

        An arm that runs operators whole has no tiles; for it, the choice is that of the first arm that has.
        """
        if arm in self.device.whole_arms:
            arm = next(other for other in self.device.arms if other not in self.device.whole_arms)
        key = (call.operator.name, arm, call.position)
        if key not in self._best:
            o = self.device.overhead(arm, self.device.workers)
            each_ns, kernel_ns = o.dispatch_ns + o.signal_ns, o.gap_ns

            def ns(configuration: Configuration) -> tuple[int, Configuration]:
                kernels = self._slowest_lanes_ns(call, configuration, each_ns)
                return sum(kernels) + (len(kernels) - 1) * kernel_ns, configuration

            self._best[key] = min(map(ns, self.kernels))[1]
        return self._best[key]

    def _kernels(self, sequence: tuple[Call, ...], arm: str) -> list[list[tuple[Call, Configuration]]]:
        """For each call the kernels that it is run by."""
        known: dict[tuple[int, int], tuple[Configuration, tuple[Operator, ...]]] = {}
        found = []
        for call in sequence:
            key = (id(call.operator), call.position)
            if key not in known:
                configuration = self.kernel_configuration(call, arm)
                known[key] = configuration, steps(call.operator, self.batch, configuration)
            configuration, operators = known[key]
            if len(operators) == 1:
                found.append([(call, configuration)])
            else:
                found.append([(Call(operator, call.index), configuration) for operator in operators])
        return found

    def _slowest_lanes_ns(self, call: Call, configuration: Configuration, each_ns: int = 0) -> list[int]:
        """For each kernel of a call its slowest lane of tiles, ``each_ns`` beside each tile."""
        key = (id(call.operator), call.position, configuration, each_ns)
        if key not in self._slowest:
            found = []
            for step in call_steps(call, self.batch, configuration):
                ns = self.table.call_tiles(step, self.batch, configuration).total_ns + each_ns
                turns = -(-len(ns) // configuration.workers)
                by_turn = np.zeros(turns * configuration.workers, np.int64)
                by_turn[: len(ns)] = ns
                found.append(int(by_turn.reshape(turns, -1).sum(axis=0).max()))
            self._slowest[key] = found
        return self._slowest[key]

    def fastest_tiles_ns(self, call: Call, arm: str) -> int:
        """A call's slowest lane of tiles alone, under the configuration in which its kernel is fastest in ``arm``."""
        return sum(self._slowest_lanes_ns(call, self.kernel_configuration(call, arm)))

    def conventional_ns(self, call: Call) -> int:
        """Time of a call as a kernel of its own: run whole where the device's conventional arm does, else as tiles."""
        whole = [arm for arm in self.device.whole_arms if arm in self.arms]
        if whole:
            return int(self._whole(call, whole[0]).ns[0])
        return self.fastest_tiles_ns(call, next(iter(self.arms or self.device.arms)))

    def _whole(self, call: Call, arm: str) -> TileCosts:
        if not isinstance(self.table, CostTable):
            raise MeasureError(f"arm {arm!r} runs whole operators, which only a benchmark table has times of")
        return self.table.whole(call.operator, self.batch, call.position, arm)


@lru_cache(4096)
def _lanes(tiles: int, configuration: Configuration) -> npt.NDArray[np.uint32]:
    return np.arange(tiles, dtype=np.uint32) % np.uint32(configuration.workers)


def _kernels_queue(costs: Sequence[TileCosts], lanes: Sequence[npt.NDArray[np.uint32]], workers: int) -> TileQueue:
    """Kernels one after another: no events, each call's tiles signal one that nobody waits for."""
    sizes = [len(cost.ns) for cost in costs]
    weight_ns, input_ns, ns = _times(costs)
    op = np.repeat(np.arange(len(costs), dtype=np.uint32), sizes)
    return TileQueue(
        lane=np.concatenate(lanes), op=op, signal=op.copy(), wait_ptr=np.zeros(len(ns) + 1, np.uint32),
        wait_event=np.zeros(0, np.uint32), threshold=np.array(sizes, np.uint32), weight_ns=weight_ns,
        input_ns=input_ns, compute_ns=ns, lanes=workers, ops=len(costs),
    )  # fmt: skip


def _level_queue(
    queue: TileQueue,
    mechanism: Mechanism,
    sequence: tuple[Call, ...],
    item_stop: tuple[int, ...],
    costs: Sequence[TileCosts],
    host_ns: Times | None = None,
) -> LevelQueue:
    spread = {call.operator.name: cost.spread_frac for call, cost in zip(sequence, costs, strict=True)}
    host = np.zeros(len(sequence), np.int64) if host_ns is None else host_ns
    nothing = {len(cost.ns): np.zeros(len(cost.ns), np.bool_) for cost in costs}
    streams = np.concatenate([nothing[len(cost.ns)] if cost.streams is None else cost.streams for cost in costs])
    provenance = worst({cost.provenance for cost in costs})
    return LevelQueue(queue, mechanism, sequence, item_stop, provenance, spread, host, streams)


def _times(costs: Sequence[TileCosts]) -> tuple[Times, Times, Times]:
    """Loads of weights, loads of inputs and bodies of all tiles, in order."""
    weights = [np.zeros_like(cost.ns) if cost.weight_ns is None else cost.weight_ns for cost in costs]
    inputs = [np.zeros_like(cost.ns) if cost.input_ns is None else cost.input_ns for cost in costs]
    return np.concatenate(weights), np.concatenate(inputs), np.concatenate([cost.ns for cost in costs])


def _mechanism(
    o: Overheads, *, prefetch_depth: int, barrier: bool = False, overlap: bool = False, wait_ns: int = 0
) -> Mechanism:
    return Mechanism(
        launch_ns=o.launch_ns, gap_ns=o.gap_ns, dispatch_ns=o.dispatch_ns, event_ns=o.event_ns,
        signal_ns=o.signal_ns, drain_ns=o.drain_ns, prefetch_depth=prefetch_depth, barrier=barrier, overlap=overlap,
        wait_ns=wait_ns,
    )  # fmt: skip
