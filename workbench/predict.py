"""Prediction: where lowering, cost and simulation meet. No measured run of a composition is read here.

A region runs from a full barrier to a full barrier, so its cost depends on nothing before it, and a composition's time
to first output is the sum over its regions, each as often as the loops around it run. On the CPU a tile's time is not
split into weights, activations and arithmetic (a benchmark cannot tell them apart there): all of it is ``compute``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from workbench.compose import (
    Composition,
    Configuration,
    Level,
    Region,
    check_composition,
    levels,
    operators_in,
)
from workbench.cost import Costs, CostTable, TileCosts
from workbench.errors import CompositionError, MeasureError, WorkbenchError
from workbench.hardware import Device, Overheads, Provenance, worst
from workbench.lower import lower
from workbench.program import Call, Program, calls
from workbench.shapes import Attention
from workbench.simulate import CAUSES, Mechanism, Run, TileQueue, critical_segments, prefix_makespans, simulate
from workbench.uncertainty import interval_ns

ALL_CAUSES = ("host", *CAUSES)
HOST_RULE = "an eager call's time above the same operator's fastest tiles"


@dataclass(frozen=True, eq=False)
class LevelQueue:
    """One level run in one way: its tiles with their times, and how its regions are launched."""

    queue: TileQueue
    mechanism: Mechanism
    calls: tuple[Call, ...]
    item_stop: tuple[int, ...]
    provenance: Provenance
    spread_frac: Mapping[str, float]
    host_ns: npt.NDArray[np.int64]  # (calls,) the part of a call's time that is the host's

    def ops(self, start: int, stop: int) -> tuple[int, int]:
        """Calls of the items [start, stop)."""
        return (self.item_stop[start - 1] if start else 0), self.item_stop[stop - 1]


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """One region: ``ns`` for all its ``launches``, split into causes; tiles and events of all launches."""

    region: Region
    ns: int
    launches: int
    causes_ns: Mapping[str, int]
    tiles: int
    events: int
    stages: int
    sigma_ns: Mapping[str, float]  # one standard deviation by source of error, see ``uncertainty``
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time to first output of one composition, and what it is made of; ``causes_ns`` sum to ``ttfo_ns``.

    ``interval_ns`` is the central 95 % of the draws of ``uncertainty``; ``throughput_per_s`` counts further outputs of
    the whole batch, None where their shapes were not benchmarked. ``serial_stages`` are operator calls that follow each
    other on the critical path.
    """

    program: str
    device: str
    batch: int
    composition: Composition
    ttfo_ns: int
    interval_ns: tuple[int, int]
    causes_ns: Mapping[str, int]
    regions: tuple[RegionPrediction, ...]
    throughput_per_s: float | None
    provenance: Provenance
    notes: tuple[str, ...] = ()

    @property
    def tiles(self) -> int:
        """Tiles of all launches."""
        return sum(region.tiles for region in self.regions)

    @property
    def events(self) -> int:
        """Events of all launches."""
        return sum(region.events for region in self.regions)

    @property
    def serial_stages(self) -> int:
        """Operator calls along the critical path."""
        return sum(region.stages for region in self.regions)

    def __str__(self) -> str:
        low, high = self.interval_ns
        parts = ", ".join(f"{cause} {ns / 1e3:,.1f}" for cause, ns in self.causes_ns.items() if ns)
        return (
            f"{self.composition.name or self.composition.digest} on {self.device}, batch {self.batch}: "
            f"{self.ttfo_ns / 1e3:,.1f} µs ({low / 1e3:,.1f} to {high / 1e3:,.1f}; {self.provenance.value}); "
            f"µs: {parts}"
        )


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


class Pricer:
    """Prices regions of one program on one device at one batch; queues and interval costs are kept once built.

    ``configurations`` and ``arms`` bound what regions may be; by default all that the table has figures for, of which
    ``measured`` are those that fit the device.
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
        self.configurations = self.measured if configurations is None else configurations
        self.arms = device.arms if arms is None else arms
        self.levels = levels(program)
        self.place = {item.name: (d, i) for d, level in enumerate(self.levels) for i, item in enumerate(level.items)}
        self._queues: dict[tuple[int, tuple[int, ...], str], LevelQueue] = {}
        self._costs: dict[tuple[int, str], npt.NDArray[np.int64]] = {}
        self._best: dict[tuple[str, int], Configuration] = {}
        self._regions: dict[Region, RegionPrediction] = {}

    @property
    def treatments(self) -> tuple[str, ...]:
        """Everything that a region may be: configurations of a megakernel, then conventional arms."""
        return (*map(str, self.configurations), *self.arms)

    # -- regions -----------------------------------------------------------------------------------------------

    def kernel_configuration(self, call: Call) -> Configuration:
        """The configuration under which a conventional kernel of this call is fastest; fewer tiles if equal."""
        key = (call.operator.name, call.position)
        if key not in self._best:
            workers = self.device.workers
            overheads = self.device.overhead(self._tiled_arm, workers)

            def ns(configuration: Configuration) -> tuple[int, Configuration]:
                times = self.table.call_tiles(call, self.batch, configuration).total_ns
                lanes = np.arange(len(times)) % configuration.workers
                work = np.bincount(lanes, times + overheads.dispatch_ns + overheads.signal_ns)
                return int(work.max()), configuration

            self._best[key] = min(map(ns, self.measured))[1]
        return self._best[key]

    def level_queue(self, depth: int, index: Mapping[str, int], treatment: str) -> LevelQueue:
        """A level of program text run as one treatment, with the loops around it at ``index``."""
        level = self.levels[depth]
        key = (depth, tuple(index[name] for name in relevant_loops(level)), treatment)
        if key not in self._queues:
            if treatment[:1].isdigit():
                built = self._megakernel_queue(level, index, Configuration.parse(treatment))
            else:
                built = self._conventional_queue(level, index, treatment)
            self._queues[key] = built
        return self._queues[key]

    def _megakernel_queue(self, level: Level, index: Mapping[str, int], configuration: Configuration) -> LevelQueue:
        lowered = lower(level.items, index, self.batch, configuration)
        tiles, events = lowered.tiles, lowered.events
        costs = [self.table.call_tiles(call, self.batch, configuration) for call in tiles.calls]
        weight_ns, input_ns, ns = _times(costs)
        queue = TileQueue(
            lane=tiles.lane, op=tiles.call, signal=events.signal, wait_ptr=events.wait_ptr,
            wait_event=events.wait_event, threshold=events.threshold, weight_ns=weight_ns,
            input_ns=input_ns, compute_ns=ns, lanes=tiles.lanes, ops=len(tiles.calls),
        )  # fmt: skip
        mechanism = _mechanism(
            self.device.overhead("megakernel", configuration.workers), depth=self.device.prefetch_depth, barrier=False
        )
        return LevelQueue(
            queue, mechanism, tiles.calls, lowered.item_stop, worst({cost.provenance for cost in costs}),
            {call.operator.name: cost.spread_frac for call, cost in zip(tiles.calls, costs, strict=True)},
            np.zeros(len(tiles.calls), np.int64),
        )  # fmt: skip

    def _conventional_queue(self, level: Level, index: Mapping[str, int], arm: str) -> LevelQueue:
        sequence: list[Call] = []
        item_stop: list[int] = []
        for item in level.items:
            sequence.extend(calls((item,), index))
            item_stop.append(len(sequence))
        if arm not in self.device.whole_arms:
            chosen = [self.kernel_configuration(call) for call in sequence]
            costs = [self.table.call_tiles(c, self.batch, cfg) for c, cfg in zip(sequence, chosen, strict=True)]
            lanes = [np.arange(len(k.ns)) % cfg.workers for k, cfg in zip(costs, chosen, strict=True)]
            workers = self.device.workers
            host = np.zeros(len(sequence), np.int64)
        else:
            costs = [self._whole(call, arm) for call in sequence]
            lanes, workers = [np.zeros(1, np.int64)] * len(sequence), 1
            tiles = np.array([self.fastest_tiles_ns(call) for call in sequence])
            host = np.maximum(0, np.array([int(cost.ns[0]) for cost in costs]) - tiles)
        sizes = [len(cost.ns) for cost in costs]
        weight_ns, input_ns, ns = _times(costs)
        op = np.repeat(np.arange(len(sequence), dtype=np.uint32), sizes)
        queue = TileQueue(
            lane=np.concatenate(lanes).astype(np.uint32), op=op, signal=op.copy(),
            wait_ptr=np.zeros(len(ns) + 1, np.uint32), wait_event=np.zeros(0, np.uint32),
            threshold=np.array(sizes, np.uint32), weight_ns=weight_ns, input_ns=input_ns,
            compute_ns=ns, lanes=workers, ops=len(sequence),
        )  # fmt: skip
        mechanism = _mechanism(self.device.overhead(arm, self.device.workers), depth=min(1, self.device.prefetch_depth))
        return LevelQueue(
            queue, mechanism, tuple(sequence), tuple(item_stop), worst({cost.provenance for cost in costs}),
            {call.operator.name: cost.spread_frac for call, cost in zip(sequence, costs, strict=True)}, host,
        )  # fmt: skip

    def fastest_tiles_ns(self, call: Call) -> int:
        """A call's slowest lane of tiles alone, under the configuration in which its kernel is fastest."""
        configuration = self.kernel_configuration(call)
        ns = self.table.call_tiles(call, self.batch, configuration).total_ns
        return int(np.bincount(np.arange(len(ns)) % configuration.workers, ns).max())

    def _whole(self, call: Call, arm: str) -> TileCosts:
        if not isinstance(self.table, CostTable):
            raise MeasureError(f"arm {arm!r} runs whole operators, which only a benchmark table has times of")
        return self.table.whole(call.operator, self.batch, call.position, arm)

    @property
    def _tiled_arm(self) -> str:
        return next(arm for arm in self.device.arms if arm not in self.device.whole_arms)

    def conventional_ns(self, call: Call) -> int:
        """Time of a call as a kernel of its own: run whole where the device's conventional arm does, else as tiles."""
        whole = [arm for arm in self.device.whole_arms if arm in self.arms]
        return int(self._whole(call, whole[0]).ns[0]) if whole else self.fastest_tiles_ns(call)

    def interval_costs(self, depth: int, treatment: str) -> npt.NDArray[np.int64]:
        """(items, items + 1): entry [i, j] is the cost in ns of the region of items [i, j) over all its launches.

        One pass from each item prices every region that starts there; -1 where j <= i.
        """
        key = (depth, treatment)
        if key not in self._costs:
            count = len(self.levels[depth].items)
            total = np.full((count, count + 1), -1, np.int64)
            for start in range(count):
                total[start, start + 1 :] = 0
            for index, times in executions(self.levels[depth]):
                priced = self.level_queue(depth, index, treatment)
                for start in range(count):
                    first, _ = priced.ops(start, start + 1)
                    prefixes = prefix_makespans(priced.queue, priced.mechanism, first)
                    stops = np.array(priced.item_stop[start:]) - first - 1
                    total[start, start + 1 :] += times * prefixes[stops]
            self._costs[key] = total
        return self._costs[key]

    def region_ns(self, region: Region) -> int:
        """Time of one region over all its launches, without its causes; read off ``interval_costs``."""
        depth, start = self.place[region.items[0]]
        return int(self.interval_costs(depth, _treatment(region))[start, start + len(region.items)])

    def runs(self, region: Region) -> list[tuple[LevelQueue, Run, int]]:
        """The simulated launches of a region: the level's queue, the run, and how often it recurs."""
        depth, start = self.place[region.items[0]]
        stop = start + len(region.items)
        treatment = _treatment(region)
        found = []
        for index, times in executions(self.levels[depth]):
            priced = self.level_queue(depth, index, treatment)
            found.append((priced, simulate(priced.queue, priced.mechanism, *priced.ops(start, stop)), times))
        return found

    def region(self, region: Region) -> RegionPrediction:
        """Predict one region over all its launches."""
        if region not in self._regions:
            self._regions[region] = self._region(region)
        return self._regions[region]

    def _region(self, region: Region) -> RegionPrediction:
        split = dict.fromkeys(ALL_CAUSES, 0)
        ns = launches = tiles = events = stages = overheads = 0
        how = _treatment(region)
        sigma: dict[str, float] = {}
        provenances: set[Provenance] = set()
        for priced, run, times in self.runs(region):
            host = int(priced.host_ns[run.start_op : run.stop_op].sum())
            split["host"] += times * host
            split["compute"] -= times * host
            on_path = set()
            for segment in critical_segments(run):
                split[segment.cause] += times * (segment.end_ns - segment.begin_ns)
                if segment.tile is not None:
                    op = int(run.queue.op[segment.tile])
                    on_path.add(op)
                    if segment.cause in ("compute", "tail", "weights", "activations"):
                        name = priced.calls[op].operator.name
                        error = times * (segment.end_ns - segment.begin_ns) * priced.spread_frac[name]
                        sigma[f"{name}/{how}"] = sigma.get(f"{name}/{how}", 0.0) + error
            overheads = sum(split[cause] for cause in ("launch", "ramp", "drain", "dispatch", "event_wait"))
            ns += times * run.makespan_ns
            launches += times
            tiles += times * len(run.end_ns)
            events += times * len(np.unique(run.queue.signal[run.tiles]))
            stages += times * len(on_path)
            provenances.add(priced.provenance)
        arm = region.arm or "megakernel"
        sigma[f"launch/{arm}"] = overheads * self._overheads(region).spread_frac
        return RegionPrediction(region, ns, launches, split, tiles, events, stages, sigma, worst(provenances))

    def _overheads(self, region: Region) -> Overheads:
        if region.configuration is not None:
            return self.device.overhead("megakernel", region.configuration.workers)
        return self.device.overhead(region.arm, self.device.workers)

    # -- compositions ------------------------------------------------------------------------------------------

    def predict(self, composition: Composition) -> Prediction:
        """Time to first output of a composition, with its causes; CompositionError if it is illegal here."""
        check_composition(self.program, composition)
        for region in composition.regions:
            self._check_resources(region)
        parts = tuple(self.region(region) for region in composition.regions)
        split = {cause: sum(part.causes_ns[cause] for part in parts) for cause in ALL_CAUSES}
        ttfo_ns = sum(part.ns for part in parts)
        notes = (self.program.assumed,) if self.program.assumed else ()
        return Prediction(
            program=self.program.name, device=self.device.name, batch=self.batch, composition=composition,
            ttfo_ns=ttfo_ns, interval_ns=interval_ns(ttfo_ns, self.sigma_ns(parts)), causes_ns=split,
            regions=parts, throughput_per_s=self._throughput(composition),
            provenance=worst({part.provenance for part in parts}), notes=notes,
        )  # fmt: skip

    def sigma_ns(self, parts: tuple[RegionPrediction, ...]) -> dict[str, float]:
        """Standard deviations of a composition's time by source of error; the same source adds up over regions.

        What a run shares (where memory lies, clocks) is one source a treatment: it need not hit two treatments alike.
        """
        total: dict[str, float] = {}
        for part in parts:
            run = f"run/{part.region.configuration or part.region.arm}"
            mine = {**part.sigma_ns, run: self.device.run_spread_frac * part.ns}
            for source, sigma in mine.items():
                total[source] = total.get(source, 0.0) + sigma
        return total

    def _check_resources(self, region: Region) -> None:
        if region.configuration is not None and region.configuration.workers > self.device.workers:
            raise CompositionError(
                f"{region}: {region.configuration.workers} workers wait for each other but {self.device.name} runs "
                f"{self.device.workers} at once: they could not all be resident, and would deadlock"
            )

    @cached_property
    def _further(self) -> Pricer | None:
        if not self.program.further:
            return None
        shapes = {name: op.shape for name, op in self.program.operators().items()}
        rest = Program(self.program.name, self.program.further, self.program.further)
        unpriced = any(shapes.get(name) != op.shape for name, op in rest.operators().items())
        if unpriced and isinstance(self.table, CostTable):
            return None  # benchmarks are of the first output's shapes
        return Pricer(rest, self.device, self.table, self.batch, self.configurations, self.arms)

    def _throughput(self, composition: Composition) -> float | None:
        further = self._further
        if further is None:
            return None
        restricted = restrict(composition, further)
        try:
            check_composition(further.program, restricted)
        except CompositionError:
            return None  # a further output runs operators that the first did not, and the cuts say nothing of them
        return self.batch * 1e9 / sum(map(further.region_ns, restricted.regions))


def restrict(composition: Composition, further: Pricer) -> Composition:
    """The same cuts on a part of the program: regions keep their treatment and lose the items that are not there."""
    regions = []
    for region in composition.regions:
        kept = tuple(item for item in region.items if item in further.place)
        if kept:
            regions.append(Region(kept, region.kind, region.configuration, region.arm))
    return Composition(tuple(regions), composition.name)


def _treatment(region: Region) -> str:
    return str(region.configuration or region.arm)


def _times(costs: list[TileCosts]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Loads of weights, loads of inputs and bodies of all tiles, in order."""
    weights = [np.zeros_like(cost.ns) if cost.weight_ns is None else cost.weight_ns for cost in costs]
    inputs = [np.zeros_like(cost.ns) if cost.input_ns is None else cost.input_ns for cost in costs]
    return np.concatenate(weights), np.concatenate(inputs), np.concatenate([cost.ns for cost in costs])


def _mechanism(o: Overheads, *, depth: int, barrier: bool = True) -> Mechanism:
    return Mechanism(
        launch_ns=o.launch_ns, gap_ns=o.gap_ns, dispatch_ns=o.dispatch_ns, event_ns=o.event_ns,
        signal_ns=o.signal_ns, drain_ns=o.drain_ns, prefetch_depth=depth, barrier=barrier,
    )  # fmt: skip
