"""What regions cost: every region of a level by one pass from each start, and what overlapping launches save.

A region runs from a full barrier to a full barrier, so its cost depends on nothing before it, and costs are kept by
content: levels alike (the same operators, under whatever names) are priced once a table. Two things are not of a region
alone. Its shared memory, and so how far it prefetches, is that of the union of its bodies: a pass is made for each
depth that the regions from one start have. And where launches overlap, a kernel knows how the launch before it ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from workbench.compose import Configuration, Region, operators_in
from workbench.cost import Costs as PricedBy
from workbench.cost import CostTable
from workbench.cost.resources import bodies, prefetch_depth, union
from workbench.errors import CompositionError
from workbench.hardware import Device, Overheads
from workbench.predict.handover import Passage, Target, Text
from workbench.predict.queues import LevelQueue, LevelQueues, executions
from workbench.program import Item, Loop, Program, items
from workbench.simulate import Exit, Exits, chain_ns, exits, follow_ns, prefix_makespans

Costs = npt.NDArray[np.int64]
ILLEGAL_NS = 1 << 60  # the cost of a region that cannot run


def treatment_of(region: Region) -> str:
    """A region's configuration or arm, as text."""
    return str(region.configuration or region.arm)


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
        self._exits: dict[tuple[int, tuple[int, ...], str, int], Exits] = {}
        self._one_exit: dict[tuple[int, int, int, str, tuple[int, ...]], Exit | None] = {}
        self._handovers: dict[tuple[int, str, str], Costs] = {}
        self._chains: dict[tuple[int, tuple[int, ...], str], tuple[Costs, Costs]] = {}

    # -- resources ---------------------------------------------------------------------------------------------------

    def depth_of(self, depth: int, start: int, stop: int, configuration: Configuration) -> int | None:
        """How many tiles' weights a megakernel of these items holds; None where it cannot run on the device."""
        if self.device.limits is None:
            return self.device.prefetch_depth
        kinds = self._kinds(depth, start, stop, configuration)
        return prefetch_depth(kinds, self.device.limits, self.device.prefetch_depth)

    def _kinds(self, depth: int, start: int, stop: int, configuration: Configuration) -> frozenset[str]:
        chosen = self.levels[depth].items[start:stop]
        return bodies((op for item in chosen for op in operators_in(item)), self.batch, configuration)

    def _depths(self, depth: int, start: int, configuration: Configuration) -> list[int | None]:
        """``depth_of`` for every stop beyond ``start``."""
        limits, most = self.device.limits, self.device.prefetch_depth
        if limits is None:
            return [most] * (len(self.levels[depth].items) - start)
        kinds: frozenset[str] = frozenset()
        found: list[int | None] = []
        for stop in range(start + 1, len(self.levels[depth].items) + 1):
            kinds |= self._kinds(depth, stop - 1, stop, configuration)
            found.append(prefetch_depth(kinds, limits, most))
        return found

    def can_run(self, depth: int, treatment: str) -> npt.NDArray[np.bool_]:
        """(items, items + 1): whether the region of items [i, j) fits the device; false where j <= i."""
        count = len(self.levels[depth].items)
        found = ~np.tri(count, count + 1, dtype=np.bool_)
        if treatment[:1].isdigit():
            configuration = Configuration.parse(treatment)
            for start in range(count):
                found[start, start + 1 :] = [held is not None for held in self._depths(depth, start, configuration)]
        return found

    def check_resources(self, region: Region) -> None:
        """Raise CompositionError, with the reason, if a megakernel cannot run on the device."""
        configuration, limits = region.configuration, self.device.limits
        if configuration is None:
            return
        if configuration.workers > self.device.workers:
            raise CompositionError(
                f"{region}: {configuration.workers} workers wait for each other but {self.device.name} runs "
                f"{self.device.workers} at once: they could not all be resident, and would deadlock"
            )
        depth, start = self.place[region.items[0]]
        stop = start + len(region.items)
        if limits is not None and self.depth_of(depth, start, stop, configuration) is None:
            kinds = self._kinds(depth, start, stop, configuration)
            block = union(kinds)
            raise CompositionError(
                f"{region}: a block of {', '.join(sorted(kinds))} takes {block.registers} registers, "
                f"{block.shared_bytes} bytes of shared memory and {block.threads} threads; {self.device.name} has "
                f"{limits.registers}, {limits.shared_bytes} and {limits.threads}; cut the region"
            )

    # -- every region of a level -------------------------------------------------------------------------------------

    def interval_costs(self, depth: int, treatment: str) -> Costs:
        """(items, items + 1): entry [i, j] is the cost in ns of the region of items [i, j) over all its launches.

        One pass from each item and prefetch depth prices every region that starts there; -1 where j <= i, ILLEGAL_NS
        or more where the region cannot run. Where launches overlap it is the cost after a launch that does not.
        """
        key = (depth, treatment)
        if key not in self._costs:
            count = len(self.levels[depth].items)
            total = np.zeros((count, count + 1), np.int64)
            for index, times in executions(self.levels[depth]):
                one = self._level_costs(depth, index, treatment)
                total = np.minimum(total + np.where(one >= ILLEGAL_NS, ILLEGAL_NS, times * one), ILLEGAL_NS)
            total[np.tri(count, count + 1, dtype=np.bool_)] = -1
            self._costs[key] = total
        return self._costs[key]

    def _level_costs(self, depth: int, index: Mapping[str, int], treatment: str) -> Costs:
        key = (*self._content(depth, index), treatment, self._overheads_of(treatment), self.device.limits)
        kept = self.table.region_costs
        if key not in kept:
            kept[key] = self._passes(depth, self.level_queue(depth, index, treatment), treatment)
        return kept[key]

    def _passes(self, depth: int, priced: LevelQueue, treatment: str) -> Costs:
        count = len(self.levels[depth].items)
        found = np.full((count, count + 1), -1, np.int64)
        for start in range(count):
            depths: list[int | None] = [priced.mechanism.prefetch_depth] * (count - start)
            if treatment[:1].isdigit():
                depths = self._depths(depth, start, Configuration.parse(treatment))
            first, _ = priced.ops(start, start + 1)
            for held in dict.fromkeys(depths):
                mine = [start + 1 + i for i, other in enumerate(depths) if other == held]
                if held is None:
                    found[start, mine] = ILLEGAL_NS
                    continue
                mechanism = replace(priced.mechanism, prefetch_depth=held)
                last = priced.item_stop[mine[-1] - 1]
                prefixes = prefix_makespans(priced.queue, mechanism, first, last)
                found[start, mine] = prefixes[[priced.item_stop[stop - 1] - first - 1 for stop in mine]]
        return found

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
        return o, self.device.prefetch_depth, wait_ns, self.measured, self.device.workers

    def region_ns(self, region: Region) -> int:
        """Time of one region over all its launches, without its causes; read off ``interval_costs``."""
        depth, start = self.place[region.items[0]]
        return int(self.interval_costs(depth, treatment_of(region))[start, start + len(region.items)])

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

    def exits(self, depth: int, start: int, treatment: str, index: Mapping[str, int]) -> Exits | None:
        """How launches of the items [start, stop) end, for every stop; None where nothing can overlap them."""
        if treatment in self.device.whole_arms:
            return None
        conventional = not treatment[:1].isdigit()
        key = (depth, self.index_key(depth, index), treatment, 0 if conventional else start)
        if key not in self._exits:
            priced = self.level_queue(depth, index, treatment)
            if conventional:  # each kernel by itself: which regions it ends does not matter
                self._exits[key] = exits(priced.queue, priced.mechanism, 0, priced.item_stop)
            else:
                self._exits[key] = self._megakernel_exits(depth, start, priced, Configuration.parse(treatment))
        found = self._exits[key]
        return found.since(start) if conventional else found

    def _megakernel_exits(self, depth: int, start: int, priced: LevelQueue, configuration: Configuration) -> Exits:
        depths, (first, _) = self._depths(depth, start, configuration), priced.ops(start, start + 1)
        parts: dict[int, Exits] = {}
        for held in dict.fromkeys(depths):
            mine = [i for i, other in enumerate(depths) if other == held]
            mechanism = replace(priced.mechanism, prefetch_depth=held or 0)
            stops = [priced.item_stop[start + i] for i in mine]
            parts[mine[0]] = exits(priced.queue, mechanism, first, stops)  # depths only fall, so each is a run
        return Exits.joined([parts[at] for at in sorted(parts)])

    def exit(self, depth: int, start: int, stop: int, treatment: str, index: Mapping[str, int]) -> Exit | None:
        """How a launch of the items [start, stop) ends, the same object each time; None where nothing can overlap it."""
        key = (depth, start, stop, treatment, self.index_key(depth, index))
        if key not in self._one_exit:
            found = self.exits(depth, start, treatment, index)
            self._one_exit[key] = None if found is None else found[stop - start - 1]
        return self._one_exit[key]

    def saved_ns(self, before: Exits, targets: Sequence[Target], arm: str) -> Costs:
        """For each of some exits, how much later its target would end, were it not launched within it, ns.

        Targets are items of one level at one index, run by the overlapping ``arm``.
        """
        depth, index = targets[0].depth, targets[0].index
        priced = self.level_queue(depth, index, arm)
        key = (depth, self.index_key(depth, index), arm)
        if key not in self._chains:
            self._chains[key] = chain_ns(priced.queue, priced.mechanism)
        ops = np.array([priced.ops(target.item, target.item + 1)[0] for target in targets])
        return self._chains[key][0][ops] - follow_ns(priced.queue, priced.mechanism, ops, before)

    def handovers(self, depth: int, treatment: str, arm: str) -> Costs:
        """(items, items + 1): what the overlapping ``arm`` saves at item j after the items [i, j), over all launches.

        0 where j is beyond the last item: there the program's text says what comes next (``handovers_at_end``).
        """
        key = (depth, treatment, arm)
        if key not in self._handovers:
            count = len(self.levels[depth].items)
            found = np.zeros((count, count + 1), np.int64)
            for index, times in executions(self.levels[depth]):
                for start in range(count - 1):
                    before = self.exits(depth, start, treatment, index)
                    if before is not None:
                        targets = [Target(depth, stop, index) for stop in range(start + 1, count)]
                        found[start, start + 1 : count] += times * self.saved_ns(
                            before.first(len(targets)), targets, arm
                        )
            self._handovers[key] = found
        return self._handovers[key]

    def handovers_at_end(self, depth: int, treatment: str, arm: str, passages: tuple[Passage, ...]) -> Costs:
        """(items,): what the overlapping ``arm`` saves after the items from i to the level's end, over ``passages``."""
        count = len(self.levels[depth].items)
        found = np.zeros(count, np.int64)
        for passage in self.text.grouped(depth, passages):
            ends = [self.exits(depth, start, treatment, passage.source) for start in range(count)]
            last = [end.last() for end in ends if end is not None]
            if last:
                saved = self.saved_ns(Exits.joined(last), [passage.target] * count, arm)
                found += passage.times * saved
        return found
