"""What regions cost: every region of a level by one pass from each start, and what overlapping launches save.

A region runs from a full barrier to a full barrier, so its cost depends on nothing before it, and costs are kept by
content: levels alike (the same operators, under whatever names) are priced once a table. Two things are not of a region
alone. What a megakernel holds of an SM is that of the union of its bodies, on one rung of a ladder of builds
(``cost.resources``): a pass is made for each that the regions from one start have, and a region takes the rung on which
all its launches together are shortest. And where launches overlap, a kernel knows how the launch before it ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from workbench.compose import Configuration, Region, operators_in
from workbench.cost import Costs as PricedBy
from workbench.cost import CostTable
from workbench.cost.resources import Held, bodies, ladder
from workbench.errors import CompositionError
from workbench.hardware import Device, Overheads
from workbench.predict.handover import Passage, Text
from workbench.predict.queues import LevelQueues, executions
from workbench.program import Item, Loop, Program, items
from workbench.simulate import Exit, Exits, ItemRegions, chain_ns, follow_ns, item_regions, makespan
from workbench.simulate.items import later

Costs = npt.NDArray[np.int64]
ILLEGAL_NS = 1 << 60  # the cost of a region that cannot run
MOST_KEPT = 2_000  # results that are kept for a table, by content
NUMBERS = itertools.count()
Kept = TypeVar("Kept")


def treatment_of(region: Region) -> str:
    """A region's configuration or arm, as text."""
    return str(region.configuration or region.arm)


def _in_order(held: Held | None) -> tuple[Held, ...]:
    """Among rungs that are as good, the least is taken; a device without SMs has None alone."""
    return () if held is None else (held,)


class Regions(LevelQueues):
    """Prices of regions of one program on one device at one batch."""

    def __init__(
        self,
        program: Program,
        device: Device,
        table: PricedBy,
        batch: int,
        configurations: tuple[Configuration, ...] | None = None,
        arms: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(program, device, table, batch, configurations, arms)
        self.text = Text(self.levels, self.relevant)
        self._costs: dict[tuple[int, str], Costs] = {}
        self._ladders: dict[tuple[int, Configuration], list[list[tuple[Held | None, ...]]]] = {}
        self._chosen: dict[tuple[int, str], tuple[tuple[Held | None, ...], Costs]] = {}
        self._exits: dict[tuple[int, int, int, str, tuple[int, ...]], Exit | None] = {}
        self._contents: dict[tuple[int, tuple[int, ...]], int] = {}
        self._ways: dict[str, int] = {}
        self._alone: dict[tuple[Region, Held | None], int] = {}
        self._ends: dict[tuple[int, str, str, int], Costs] = {}
        self._handovers: dict[tuple[int, str, str], Costs] = {}
        self._chains: dict[tuple[int, tuple[int, ...], str], tuple[Costs, Costs]] = {}

    # -- resources ---------------------------------------------------------------------------------------------------

    def ladder_of(self, region: Region) -> tuple[Held | None, ...]:
        """What a megakernel's blocks may hold of an SM, by rung; (None,) if the device has no such thing, () if it
        cannot run.
        """  # fmt: skip
        depth, start = self.place[region.items[0]]
        assert region.configuration is not None
        return self._ladder(depth, region.configuration)[start][len(region.items) - 1]

    def _kinds(self, depth: int, start: int, stop: int, configuration: Configuration) -> frozenset[str]:
        chosen = self.levels[depth].items[start:stop]
        operators = (op for item in chosen for op in operators_in(item))
        return bodies(operators, self.batch, configuration, self.device.mma_rows)

    def _ladder(self, depth: int, configuration: Configuration) -> list[list[tuple[Held | None, ...]]]:
        """``ladder_of`` by start, and by the number of items less one."""
        key = (depth, configuration)
        if key not in self._ladders:
            count = len(self.levels[depth].items)
            each = [self._kinds(depth, item, item + 1, configuration) for item in range(count)]
            unions = [accumulate(each[i:], lambda a, b: a | b) for i in range(count)]
            self._ladders[key] = [[self._rungs(kinds, configuration) for kinds in union] for union in unions]
        return self._ladders[key]

    def _rungs(self, kinds: frozenset[str], configuration: Configuration) -> tuple[Held | None, ...]:
        if self.device.sm is None:
            return (None,)
        device, tiles = self.device, configuration.tiles_per_worker
        return ladder(kinds, self.device.sm, device.prefetch_depth, device.effects, tiles)

    def can_run(self, depth: int, treatment: str) -> npt.NDArray[np.bool_]:
        """(items, items + 1): whether the region of items [i, j) fits the device; false where j <= i."""
        count = len(self.levels[depth].items)
        found = later(count).copy()
        if treatment[:1].isdigit():
            for start, rungs in enumerate(self._ladder(depth, Configuration.parse(treatment))):
                found[start, start + 1 :] = [bool(rung) for rung in rungs]
        return found

    def check_resources(self, region: Region) -> None:
        """Raise CompositionError, with the reason, if a megakernel cannot run on the device."""
        configuration, sm = region.configuration, self.device.sm
        if configuration is None:
            return
        if configuration.workers > self.device.workers:
            raise CompositionError(
                f"{region}: {configuration.workers} workers wait for each other but {self.device.name} runs "
                f"{self.device.workers} at once: they could not all be resident, and would deadlock"
            )
        if sm is not None and not self.ladder_of(region):
            depth, start = self.place[region.items[0]]
            kinds = self._kinds(depth, start, start + len(region.items), configuration)
            raise CompositionError(
                f"{region}: however a block of {', '.join(sorted(kinds))} is built, it takes more registers, shared "
                f"memory or threads than an SM of {self.device.name} has ({sm.registers}, {sm.block_shared_bytes} "
                f"bytes a block, {sm.threads}); cut the region"
            )

    # -- every region of a level -------------------------------------------------------------------------------------

    def interval_costs(self, depth: int, treatment: str) -> Costs:
        """(items, items + 1): entry [i, j] is the cost in ns of the region of items [i, j) over all its launches.

        One pass from each item and rung prices every region that starts there; -1 where j <= i, ILLEGAL_NS or more
        where the region cannot run. Where launches overlap it is the cost after a launch that does not.
        """
        key = (depth, treatment)
        if key not in self._costs:
            total = np.min(self._rung_costs(depth, treatment)[1], axis=0)
            total[~later(len(self.levels[depth].items))] = -1
            self._costs[key] = total
        return self._costs[key]

    def _rung_costs(self, depth: int, treatment: str) -> tuple[tuple[Held | None, ...], Costs]:
        """The rungs that regions of a level may be on, and (rungs, items, items + 1) the costs of its regions there."""
        key = (depth, treatment)
        if key not in self._chosen:
            count, rungs = len(self.levels[depth].items), self._rungs_of(depth, treatment)
            totals = np.zeros((len(rungs), count, count + 1), np.int64)
            for index, times in executions(self.levels[depth]):
                for total, held in zip(totals, rungs, strict=True):
                    ns = self._rung_regions(depth, index, treatment, held).ns
                    np.minimum(total + np.where(ns < 0, ILLEGAL_NS, times * ns), ILLEGAL_NS, out=total)
            self._chosen[key] = rungs, totals
        return self._chosen[key]

    def _rungs_of(self, depth: int, treatment: str) -> tuple[Held | None, ...]:
        if not treatment[:1].isdigit():
            return (None,)
        ladders = self._ladder(depth, Configuration.parse(treatment))
        found = {held for row in ladders for rungs in row for held in rungs}
        return tuple(sorted(found, key=_in_order)) or (Held(0),)  # one on which nothing can run

    def _rung_regions(self, depth: int, index: Mapping[str, int], treatment: str, held: Held | None) -> ItemRegions:
        """Every region of a level that may be on a rung, at one loop index; with how it ends, if that matters."""
        content = ("regions", *self._content_key(depth, index, treatment), held, bool(self.overlapping))
        return self._kept(content, partial(self._simulated, depth, index, treatment, held))

    def _simulated(self, depth: int, index: Mapping[str, int], treatment: str, held: Held | None) -> ItemRegions:
        priced, depths = self.level_queue(depth, index, treatment, held), None
        if held is not None:
            count = len(self.levels[depth].items)
            depths = np.full((count, count + 1), -1, np.int64)
            for start, rungs in enumerate(self._ladder(depth, Configuration.parse(treatment))):
                depths[start, start + 1 :] = [held.pages if held in rung else -1 for rung in rungs]
        exits = bool(self.overlapping) and treatment not in self.device.whole_arms
        return item_regions(priced.queue, priced.mechanism, priced.item_stop, depths, exits=exits)

    def _level_regions(self, depth: int, index: Mapping[str, int], treatment: str) -> ItemRegions:
        """Every region of a level at one loop index, each on its own rung."""
        rungs, totals = self._rung_costs(depth, treatment)
        if len(rungs) == 1:
            return self._rung_regions(depth, index, treatment, rungs[0])
        which = totals.argmin(axis=0)
        content = ("chosen", *self._content_key(depth, index, treatment), bool(self.overlapping), which.tobytes())
        return self._kept(content, partial(self._on_rungs, depth, index, treatment, rungs, which))

    def _on_rungs(
        self,
        depth: int,
        index: Mapping[str, int],
        treatment: str,
        rungs: tuple[Held | None, ...],
        which: npt.NDArray[np.intp],
    ) -> ItemRegions:
        each = [self._rung_regions(depth, index, treatment, held) for held in rungs]

        def taken(parts: list[Costs]) -> Costs:
            at = which.reshape(1, *which.shape, *(1,) * (parts[0].ndim - 2))
            picked: Costs = np.take_along_axis(np.stack(parts), at, axis=0)[0]
            return picked

        ns = taken([one.ns for one in each])
        if each[0].started_ns is None:
            return ItemRegions(ns)
        return ItemRegions(
            ns,
            taken([one.started_ns for one in each if one.started_ns is not None]),
            taken([one.free_ns for one in each if one.free_ns is not None]),
        )

    def held(self, region: Region) -> Held | None:
        """The rung of a megakernel that all its launches together are shortest on; None where there is no such thing.

        CompositionError if it cannot run.
        """
        self.check_resources(region)
        rungs = self.ladder_of(region)
        if len(rungs) == 1:
            return rungs[0]
        return min(rungs, key=lambda held: (self._on_rung_ns(region, held), _in_order(held)))

    def _on_rung_ns(self, region: Region, held: Held | None) -> int:
        """Cost of a region over all its launches on a rung of its ladder."""
        depth, start = self.place[region.items[0]]
        treatment, stop = treatment_of(region), start + len(region.items)
        if (depth, treatment) in self._chosen:
            rungs, totals = self._chosen[depth, treatment]
            return int(totals[rungs.index(held), start, stop])
        key = (region, held)
        if key not in self._alone:
            self._alone[key] = 0
            for index, times in executions(self.levels[depth]):
                priced = self.level_queue(depth, index, treatment, held)
                self._alone[key] += times * makespan(priced.queue, priced.mechanism, *priced.ops(start, stop))
        return self._alone[key]

    def _kept(self, content: Hashable, make: Callable[[], Kept]) -> Kept:
        """What the table's prices come to, by content; made once."""
        kept = self.table.region_costs
        if content not in kept:
            if len(kept) > MOST_KEPT:
                kept.clear()
            kept[content] = make()
        return cast(Kept, kept[content])

    def _content_key(self, depth: int, index: Mapping[str, int], treatment: str) -> tuple[Hashable, ...]:
        """All that a level's costs hang on, as numbers that stand for their content: they are asked for often."""
        shown = (depth, self.index_key(depth, index))
        if shown not in self._contents:
            self._contents[shown] = self._number_of(self._content(depth, index))
        return self._contents[shown], self._way(treatment)

    def _way(self, treatment: str) -> int:
        """A number for a treatment with its overheads on a device of these resources."""
        if treatment not in self._ways:
            device = self.device
            self._ways[treatment] = self._number_of(
                (treatment, self._overheads_of(treatment), device.sm, device.effects, device.mma_rows)
            )
        return self._ways[treatment]

    def _number_of(self, content: Hashable) -> int:
        """The number that stands for a content; a number stands for one content only."""
        number: int = self._kept(content, lambda: next(NUMBERS))
        return number

    def _content(self, depth: int, index: Mapping[str, int]) -> tuple[Hashable, ...]:
        """All of a level that its costs depend on; a benchmark table knows operators by name, a roofline by shape."""
        names: dict[str, int] = {}
        named = isinstance(self.table, CostTable)

        def number(name: str) -> int:
            return names.setdefault(name, len(names))

        def content(item: Item) -> Hashable:
            if isinstance(item, Loop):
                return number(f"@{item.name}"), item.count, tuple(map(content, items(item.body)))
            around = item.position_loop in index
            position = item.position + (index[item.position_loop] if around else 0)
            inside = -1 if around or not item.position_loop else number(f"@{item.position_loop}")
            tensors = tuple(map(number, item.reads)), tuple(map(number, item.writes))
            return item.name if named else "", item.shape, item.element_bytes, position, inside, *tensors

        return self.batch, tuple(map(content, self.levels[depth].items))

    def _overheads_of(self, treatment: str) -> tuple[Hashable, ...]:
        if treatment[:1].isdigit():
            workers = Configuration.parse(treatment).workers
            return self.device.overhead("megakernel", workers), self.device.prefetch_depth
        o = self.device.overhead(treatment, self.device.workers)
        wait_ns = self.device.waits_ns.get(treatment)
        return o, self.device.kernel_depth, wait_ns, self.kernels, self.device.workers

    def region_ns(self, region: Region) -> int:
        """Time of one region over all its launches, without its causes; from ``interval_costs`` if they are known."""
        depth, start = self.place[region.items[0]]
        treatment = treatment_of(region)
        if (depth, treatment) in self._costs:
            return int(self._costs[depth, treatment][start, start + len(region.items)])
        rungs = (None,) if region.configuration is None else self.ladder_of(region)
        return min((self._on_rung_ns(region, held) for held in rungs), default=ILLEGAL_NS)

    def overheads(self, region: Region) -> Overheads:
        """Overheads of the way that a region is run."""
        if region.configuration is not None:
            return self.device.overhead("megakernel", region.configuration.workers)
        return self.device.overhead(region.arm, self.device.workers)

    # -- overlapping launches ----------------------------------------------------------------------------------------

    @property
    def overlapping(self) -> tuple[str, ...]:
        """Arms whose launches overlap what is before them."""
        return tuple(arm for arm in self.arms if arm in self.device.waits_ns)

    def exit(self, depth: int, start: int, stop: int, treatment: str, index: Mapping[str, int]) -> Exit | None:
        """How a launch of the items [start, stop) ends, one object each time; None where nothing can overlap it."""
        key = (depth, start, stop, treatment, self.index_key(depth, index))
        if key not in self._exits:
            whole = treatment in self.device.whole_arms
            self._exits[key] = None if whole else self._level_regions(depth, index, treatment).exit(start, stop)
        return self._exits[key]

    def saved_ns(
        self, before: Exits, depth: int, items: Sequence[int] | npt.NDArray[np.intp], index: Mapping[str, int], arm: str
    ) -> Costs:
        """For each of some exits, how much later the item launched within it would end, were it not, ns.

        The items are of one level at one index, run by the overlapping ``arm``.
        """
        priced = self.level_queue(depth, index, arm)
        key = (depth, self.index_key(depth, index), arm)
        if key not in self._chains:
            self._chains[key] = chain_ns(priced.queue, priced.mechanism)
        ops = np.array([0, *priced.item_stop[:-1]])[items]
        saved: Costs = self._chains[key][0][ops] - follow_ns(priced.queue, priced.mechanism, ops, before)
        return saved

    def handovers(self, depth: int, treatment: str, arm: str) -> Costs:
        """(items, items + 1): what the overlapping ``arm`` saves at item j after the items [i, j), over all launches.

        0 where j is beyond the last item: there the program's text says what comes next (``handovers_at_end``).
        """
        key = (depth, treatment, arm)
        if key not in self._handovers:
            count = len(self.levels[depth].items)
            total = np.zeros((count, count + 1), np.int64)
            if treatment not in self.device.whole_arms:
                for index, times in executions(self.levels[depth]):
                    content = ("handed over", *self._content_key(depth, index, treatment), self._way(arm))
                    total += times * self._kept(content, partial(self._handed_over, depth, index, treatment, arm))
            self._handovers[key] = total
        return self._handovers[key]

    def _handed_over(self, depth: int, index: Mapping[str, int], treatment: str, arm: str) -> Costs:
        count = len(self.levels[depth].items)
        found = np.zeros((count, count + 1), np.int64)
        starts, stops = np.triu_indices(count, 1)  # every start before a later item
        if len(starts):
            before = self._level_regions(depth, index, treatment).exits(starts, stops)
            found[starts, stops] = self.saved_ns(before, depth, stops, index, arm)
        return found

    def handovers_at_end(self, depth: int, treatment: str, arm: str, passages: tuple[Passage, ...]) -> Costs:
        """(items,): what the overlapping ``arm`` saves after the items from i to the level's end, over ``passages``."""
        key = (depth, treatment, arm, id(passages))
        if key in self._ends:
            return self._ends[key]
        count = len(self.levels[depth].items)
        found = np.zeros(count, np.int64)
        if treatment not in self.device.whole_arms:
            starts = np.arange(count)
            for passage in self.text.grouped(depth, passages):
                before = self._level_regions(depth, passage.source, treatment).exits(starts, np.full(count, count))
                at, item, index = passage.target
                found += passage.times * self.saved_ns(before, at, [item] * count, index, arm)
        self._ends[key] = found
        return found
