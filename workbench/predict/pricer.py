"""Predictions of compositions: regions simulated as they are launched, one after another.

A composition's time to first output is the host's time before its first launch and the sum over its regions, each as
often as the loops around it run, less what overlapping launches save at a region's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.compose import Composition, Configuration, Region, check_composition
from workbench.cost import Costs, CostTable
from workbench.errors import CompositionError
from workbench.hardware import Device, Provenance, worst
from workbench.predict.prediction import ALL_CAUSES, Prediction, RegionPrediction
from workbench.predict.queues import LevelQueue, executions
from workbench.predict.regions import ILLEGAL_NS, Regions, treatment_of
from workbench.predict.streaming import HostTime, ahead_of_end_ns, mean_batch_p95
from workbench.program import Loop, Program, items
from workbench.simulate import CAUSES, Exit, Exits, Run, path_of, simulate
from workbench.uncertainty import Draws, draw, interval_of

NOTHING = HostTime()
COMPUTE, WEIGHTS = CAUSES.index("compute"), CAUSES.index("weights")
# Causes whose length is the cost table's, as indices into CAUSES.
ON_TILES = [CAUSES.index(cause) for cause in ("compute", "tail", "weights", "activations")]


class Launch(NamedTuple):
    """A launch of a region as simulated, and how often it recurs on the way to the first output."""

    priced: LevelQueue
    run: Run
    times: int


class Entry(NamedTuple):
    """A region's launch at a loop index (as sorted pairs), the launch that it overlaps, and its times."""

    at: tuple[tuple[str, int], ...]
    before: Exit | None
    times: int


class Pricer(Regions):
    """Predictions for one program on one device at one batch; see ``LevelQueues`` for the parameters.

    ``host`` is beside the device's own ``host_ns``, which a run has once.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        table: Costs,
        batch: int,
        configurations: tuple[Configuration, ...] | None = None,
        arms: tuple[str, ...] | None = None,
        *,
        host: HostTime = NOTHING,
    ) -> None:
        alone, device = device, replace(device, host_ns=device.host_ns + host.first_ns) if host.first_ns else device
        super().__init__(program, device, table, batch, configurations, arms)
        self.host, self._device_alone = host, alone
        self._draws: dict[str, Draws] = {}
        self._regions: dict[tuple[Region, tuple[object, ...]], RegionPrediction] = {}

    def with_table(self, table: Costs) -> Pricer:
        """The same priced by another table."""
        return Pricer(
            self.program, self._device_alone, table, self.batch, self.configurations, self.arms, host=self.host
        )  # fmt: skip

    def entries(self, region: Region, composition: Composition | None = None) -> list[Entry]:
        """How a region is launched, launches that cost the same as one; in a composition with what they overlap."""
        depth, item = self.place[region.items[0]]
        if composition is None or region.arm not in self.overlapping:
            return [Entry(tuple(sorted(index.items())), None, times) for index, times in executions(self.levels[depth])]
        owner = {self.place[r.items[-1]]: r for r in composition.regions}
        opened = frozenset(self.program.loops()) - {name for r in composition.regions for name in r.items}
        found: dict[tuple[object, ...], Entry] = {}
        for index, times in self.text.indices(depth):
            source, before = self.text.before(depth, item, index, opened), None
            if source is not None and (source.depth, source.item) in owner:
                other = owner[source.depth, source.item]
                start = self.place[other.items[0]][1]
                before = self.exit(source.depth, start, source.item + 1, treatment_of(other), source.at)
            key = (self.index_key(depth, index), id(before))
            times += found[key].times if key in found else 0
            found[key] = Entry(tuple(sorted(index.items())), before, times)
        return list(found.values())

    def launch(self, region: Region, entry: Entry) -> Launch:
        """Simulate one launch of a region."""
        depth, start = self.place[region.items[0]]
        held = None if region.configuration is None else self.held(region)
        priced = self.level_queue(depth, dict(entry.at), treatment_of(region), held)
        ops = priced.ops(start, start + len(region.items))
        run = simulate(priced.queue, priced.mechanism, *ops, entry.before)
        return Launch(priced, run, entry.times)

    def runs(self, region: Region, composition: Composition | None = None) -> list[Launch]:
        """The simulated launches of a region, see ``entries``."""
        return [self.launch(region, entry) for entry in self.entries(region, composition)]

    # -- predictions -------------------------------------------------------------------------------------------------

    def region(self, region: Region, composition: Composition | None = None) -> RegionPrediction:
        """Predict one region over all its launches; in a composition, with what overlapping launches save it."""
        entries = self.entries(region, composition)
        key = region, tuple((entry.at, id(entry.before), entry.times) for entry in entries)
        if key not in self._regions:
            self._regions[key] = self._region(region, entries)
        return self._regions[key]

    def _region(self, region: Region, entries: list[Entry]) -> RegionPrediction:
        split = dict.fromkeys(ALL_CAUSES, 0)
        ns = launches = tiles = events = stages = 0
        how = treatment_of(region)
        sigma: dict[str, float] = {}
        provenances: set[Provenance] = set()
        ahead_ns: tuple[int, ...] = ()
        for entry in entries:
            priced, run, times = self.launch(region, entry)
            host = int(priced.host_ns[run.start_op : run.stop_op].sum())
            split["host"] += times * host
            split["compute"] -= times * host
            path = path_of(run)
            streaming = (path.cause == COMPUTE) & priced.streams[path.tile]
            for cause, length in enumerate(
                _sums(np.where(streaming, WEIGHTS, path.cause), path.length_ns, len(CAUSES))
            ):
                split[CAUSES[cause]] += times * length
            owned = path.tile >= 0
            on_path = np.unique(run.queue.op[path.tile[owned]])
            mine = owned & np.isin(path.cause, ON_TILES)
            by_call = _sums(run.queue.op[path.tile[mine]], path.length_ns[mine], run.queue.ops)
            for op in np.flatnonzero(by_call).tolist():
                name = priced.calls[op].operator.name
                error = times * by_call[op] * priced.spread_frac[name]
                sigma[f"{name}/{how}"] = sigma.get(f"{name}/{how}", 0.0) + error
            ns += times * run.makespan_ns
            launches += times
            tiles += times * len(run.end_ns)
            signal = run.queue.signal[run.tiles]  # a call's events are numbered after those of the call before
            events += times * (int(signal.max()) - int(signal.min()) + 1)
            stages += times * len(on_path)
            provenances.add(priced.provenance)
            if region.configuration is not None and region.items[-1] in self._ends_in and entry is entries[-1]:
                grids = self._lowered(self.place[region.items[0]][0], region.configuration).tiles.grids
                ahead_ns = ahead_of_end_ns(run, grids, self.batch)
        overheads = sum(split[cause] for cause in ("launch", "ramp", "drain", "dispatch", "event_wait"))
        sigma[f"launch/{region.arm or 'megakernel'}"] = overheads * self.overheads(region).spread_frac
        return RegionPrediction(
            region, ns, launches, split, tiles, events, stages, sigma, worst(provenances), ahead_ns
        )  # fmt: skip

    @cached_property
    def _ends_in(self) -> frozenset[str]:
        """The last item of the program's text, and while that is a loop, the last of its body."""
        names, item = set[str](), self.levels[0].items[-1]
        while isinstance(item, Loop):
            names.add(item.name)
            item = items(item.body)[-1]
        return frozenset({*names, item.name})

    def predict(self, composition: Composition, *, throughput: bool = True) -> Prediction:
        """Time to first output of a composition, with its causes; CompositionError if it is illegal here.

        Without ``throughput`` that is left out: it takes as long again.
        """
        check_composition(self.program, composition)
        for region in composition.regions:
            self.check_resources(region)
        parts = tuple(self.region(region, composition) for region in composition.regions)
        split = {cause: sum(part.causes_ns[cause] for part in parts) for cause in ALL_CAUSES}
        split["host"] += self.device.host_ns
        ttfo_ns = sum(part.ns for part in parts) + self.device.host_ns
        notes = (self.program.assumed,) if self.program.assumed else ()
        provenances = {part.provenance for part in parts}
        if self.host != NOTHING:
            notes, provenances = (*notes, str(self.host)), {*provenances, Provenance.ASSUMED}
        draws = self.draws(composition, ttfo_ns, parts)
        interval_ns = interval_of(draws, ttfo_ns)
        p95_ns, p95_interval_ns = ttfo_ns, interval_ns
        if any(parts[-1].ahead_ns):
            last_frac = draw(0.0, self.sigma_ns(parts[-1:])) / parts[-1].ns
            p95_ns, p95_interval_ns = mean_batch_p95(draws, ttfo_ns, parts[-1].ahead_ns, last_frac)
        further_ns = self.further_ns(composition) if throughput else None
        return Prediction(
            program=self.program.name, device=self.device.name, batch=self.batch, composition=composition,
            ttfo_ns=ttfo_ns, interval_ns=interval_ns, causes_ns=split, regions=parts,
            throughput_per_s=None if further_ns is None else self.batch * 1e9 / further_ns,
            provenance=worst(provenances), notes=notes, further_ns=further_ns, output_ns=self.program.output_ns,
            mean_batch_p95_ns=p95_ns, p95_interval_ns=p95_interval_ns, parameters=dict(self.program.parameters),
        )  # fmt: skip

    def total_ns(self, composition: Composition) -> int:
        """``predict(composition).ttfo_ns``, read off ``interval_costs`` and without the causes."""
        return self.device.host_ns + sum(
            self.region_ns(region) - sum(self._saved_ns(region, entry) for entry in self.entries(region, composition))
            for region in composition.regions
        )

    def _saved_ns(self, region: Region, entry: Entry) -> int:
        if entry.before is None:
            return 0
        depth, item = self.place[region.items[0]]
        saved_ns = self.saved_ns(Exits.of(entry.before), depth, [item], dict(entry.at), region.arm)
        return entry.times * int(saved_ns[0])

    def draws(self, composition: Composition, ttfo_ns: int, parts: tuple[RegionPrediction, ...]) -> Draws:
        """Draws of a prediction's time, ns; the same each time."""
        key = composition.digest
        if key not in self._draws:
            self._draws[key] = draw(ttfo_ns, self.sigma_ns(parts))
        return self._draws[key]

    def sigma_ns(self, parts: tuple[RegionPrediction, ...]) -> dict[str, float]:
        """Standard deviations of a composition's time by source of error; the same source adds up over regions.

        What a run shares (where memory lies, clocks) is one source a treatment: it need not hit two treatments alike.
        """
        total: dict[str, float] = {}
        for part in parts:
            run = f"run/{treatment_of(part.region)}"
            mine: Mapping[str, float] = {**part.sigma_ns, run: self.device.run_spread_frac * part.ns}
            for source, sigma in mine.items():
                total[source] = total.get(source, 0.0) + sigma
        return total

    # -- further outputs ---------------------------------------------------------------------------------------------

    @cached_property
    def further(self) -> Pricer | None:
        """The pricer of a further output by itself; None if there are none, or their shapes were not benchmarked."""
        if not self.program.further:
            return None
        shapes = {name: op.shape for name, op in self.program.operators().items()}
        rest = Program(self.program.name, self.program.further, self.program.further)
        unpriced = any(shapes.get(name) != op.shape for name, op in rest.operators().items())
        if unpriced and isinstance(self.table, CostTable):
            return None  # benchmarks are of the first output's shapes
        host = HostTime(self.host.further_ns)
        return Pricer(rest, self._device_alone, self.table, self.batch, self.configurations, self.arms, host=host)

    def further_ns(self, composition: Composition) -> int | None:
        """Steady cost of a further output of the whole batch; None where it is not known what it would be."""
        further = self.further
        if further is None:
            return None
        restricted = restrict(composition, further)
        try:
            check_composition(further.program, restricted)
        except CompositionError:
            return None  # a further output runs operators that the first did not, and the cuts say nothing of them
        ns = further.total_ns(restricted)
        return ns if ns < ILLEGAL_NS else None


def _sums(index: npt.NDArray[Any], ns: npt.NDArray[np.int64], size: int) -> list[int]:
    total = np.zeros(size, np.int64)
    np.add.at(total, index, ns)
    return total.tolist()


def restrict(composition: Composition, further: Pricer) -> Composition:
    """The same cuts on a part of the program: regions keep their treatment and lose the items that are not there."""
    regions = []
    for region in composition.regions:
        kept = tuple(item for item in region.items if item in further.place)
        if kept:
            regions.append(Region(kept, region.kind, region.configuration, region.arm))
    return Composition(tuple(regions), composition.name)
