"""Time to first output by walking the program as it runs: one launch after another, each simulated by itself.

Independent of ``predict``: loops are unrolled here, a region's calls are lowered alone (not as a slice of their level),
megakernels run in the plain reference simulator, and conventional regions are added up kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from oracles import overlap

from workbench.compose import Composition, Configuration, Kind, Region
from workbench.cost import Costs, CostTable, TileCosts
from workbench.cost.resources import Held, _rungs, body, ladder
from workbench.hardware import Device, Overheads
from workbench.lower.lowering import lower_calls
from workbench.program import Call, Loop, Node, Operator, Seq
from workbench.simulate import Exit, Mechanism, TileQueue, reference

Left = tuple[int, dict[int, int]]  # how a launch ends: see ``oracles.overlap.leave``


@dataclass
class Walk:
    """Launches of a composition in order, with their times in ns."""

    device: Device
    table: Costs
    batch: int
    launches: list[tuple[Region, int]] = field(default_factory=list)
    _seen: dict[object, tuple[int, Left | None]] = field(default_factory=dict)
    _left: Left | None = None
    _sequences: dict[Region, list[list[Call]]] = field(default_factory=dict)
    _held: dict[Region, Held | None] = field(default_factory=dict)
    _listing: bool = False

    def run(self, nodes: tuple[Node, ...], composition: Composition) -> int:
        """Total time of ``nodes`` under ``composition``, whose other items are left out."""
        self.launches.clear()
        self._left = None
        region_of = {item: region for region in composition.regions for item in region.items}
        self._sequences.clear()
        self._listing = True
        self._level(list(nodes), {}, region_of)
        self._listing = False
        self._held = {region: self._choose(region) for region in self._sequences if region.configuration}
        self._level(list(nodes), {}, region_of)
        return self.device.host_ns + sum(ns for _, ns in self.launches)

    def _level(self, nodes: list[Node], index: dict[str, int], region_of: Mapping[str, Region]) -> None:
        waiting: list[Call] = []
        current: Region | None = None
        queue = list(nodes)
        while queue:
            node = queue.pop(0)
            if isinstance(node, Seq):
                queue[:0] = node.body
                continue
            region = region_of.get(node.name)
            if region is None or region is not current:
                self._launch(current, waiting)
                waiting, current = [], region
            if region is not None:
                waiting += _unrolled(node, index)
            elif isinstance(node, Loop):
                for i in range(node.count):
                    self._level(list(node.body), {**index, node.name: i}, region_of)
            else:
                raise AssertionError(f"{node.name} is in no region")
        self._launch(current, waiting)

    def _launch(self, region: Region | None, sequence: list[Call]) -> None:
        if region is None or not sequence:
            return
        if self._listing:
            self._sequences.setdefault(region, []).append(list(sequence))
            return
        before = None
        if region.arm in self.device.waits_ns and self._left is not None:
            before = self._left[0], tuple(self._left[1].items())
        key = (region, before, tuple((call.operator.name, call.position) for call in sequence))
        if key not in self._seen:
            self._seen[key] = self._ns(region, sequence, self._left)
        ns, self._left = self._seen[key]
        self.launches.append((region, ns))

    def _ns(self, region: Region, sequence: list[Call], left: Left | None) -> tuple[int, Left | None]:
        if region.kind is Kind.MEGAKERNEL:
            assert region.configuration is not None
            return self._megakernel(region.configuration, sequence, self._held[region])
        o = self.device.overheads[region.arm][self.device.workers]
        total = o.launch_ns + o.drain_ns
        if region.arm in self.device.whole_arms:
            assert isinstance(self.table, CostTable)
            for call in sequence:
                whole = self.table.whole(call.operator, self.batch, call.position, region.arm).ns
                total += o.gap_ns + o.dispatch_ns + int(whole[0]) + o.signal_ns
            return total, None
        wait_ns = self.device.waits_ns.get(region.arm)
        m = Mechanism(
            gap_ns=o.gap_ns, dispatch_ns=o.dispatch_ns, signal_ns=o.signal_ns, barrier=True, overlap=True,
            prefetch_depth=self.device.kernel_depth, wait_ns=wait_ns or 0,
        )  # fmt: skip
        if wait_ns is None:
            left = None
        for call in sequence:
            for kernel in self._kernels(call, o):
                tiles = list(range(len(kernel.lane)))
                before = None
                if left is not None and wait_ns is not None:
                    before = Exit(left[0], np.array([left[1][lane] for lane in range(kernel.lanes)], np.int64))
                total += overlap.simulate(kernel, m, 0, 1, before)[0]
                left = overlap.leave(kernel, m, tiles)
        assert left is not None
        return total, (left[0] - o.drain_ns, {lane: at - o.drain_ns for lane, at in left[1].items()})

    def _kernels(self, call: Call, o: Overheads) -> list[TileQueue]:
        """The kernels of one call, under the configuration in which they are fastest, each tile by itself."""
        fit = [c for c in self.table.kernel_configurations if c.workers <= self.device.workers]
        alone: dict[Configuration, int] = {}
        for configuration in fit:
            kernels = [self._slowest_lane_ns(step, configuration, o) for step in self._steps(call, configuration)]
            alone[configuration] = sum(kernels) + o.gap_ns * (len(kernels) - 1)
        best = min(fit, key=lambda c: (alone[c], c))
        return [self._kernel(step, best) for step in self._steps(call, best)]

    def _steps(self, call: Call, configuration: Configuration) -> tuple[Call, ...]:
        return lower_calls((call,), (1,), self.batch, configuration).tiles.calls

    def _kernel(self, call: Call, configuration: Configuration) -> TileQueue:
        weight, given, ns = _parts(self.table.tiles(call.operator, self.batch, call.position, configuration))
        nothing = np.zeros(len(ns), np.uint32)
        lanes = np.array([i % configuration.workers for i in range(len(ns))], np.uint32)
        return TileQueue(
            lane=lanes, op=nothing, signal=nothing, wait_ptr=np.zeros(len(ns) + 1, np.uint32),
            wait_event=np.zeros(0, np.uint32), threshold=np.array([len(ns)], np.uint32),
            weight_ns=np.array(weight, np.int64), input_ns=np.array(given, np.int64),
            compute_ns=np.array(ns, np.int64), lanes=self.device.workers, ops=1,
        )  # fmt: skip

    def _slowest_lane_ns(self, call: Call, configuration: Configuration, o: Overheads) -> int:
        """Each tile loads, then computes, one after another."""
        lanes = [0] * configuration.workers
        costs = self.table.tiles(call.operator, self.batch, call.position, configuration)
        for tile, (weight, given, ns) in enumerate(zip(*_parts(costs), strict=True)):
            lanes[tile % configuration.workers] += o.dispatch_ns + max(weight, given) + ns + o.signal_ns
        return max(lanes)

    def _choose(self, region: Region) -> Held | None:
        """The rung on which all launches of a region together are shortest; no rung that was left out is shorter."""
        configuration, sm, effects = region.configuration, self.device.sm, self.device.effects
        if configuration is None or sm is None:
            return None
        sequences, most, tiles = self._sequences[region], self.device.prefetch_depth, configuration.tiles_per_worker
        calls = [call for sequence in sequences for call in sequence]
        kinds = frozenset(body(call.operator.shape, self.batch, configuration, self.device.mma_rows) for call in calls)
        ns = {
            held: sum(self._megakernel(configuration, sequence, held)[0] for sequence in sequences)
            for held in {*_rungs(kinds, sm, most, effects, tiles), *ladder(kinds, sm, most, effects, tiles)}
        }
        best = min(ladder(kinds, sm, most, effects, tiles), key=lambda held: (ns[held], held))
        assert ns[best] == min(ns.values()), "a rung that is left out is better"
        return best

    def _megakernel(self, configuration: Configuration, sequence: list[Call], held: Held | None) -> tuple[int, Left]:
        lowered = lower_calls(tuple(sequence), (len(sequence),), self.batch, configuration)
        tiles, events = lowered.tiles, lowered.events
        parts = [_parts(self.table.call_tiles(c, self.batch, configuration, held)) for c in tiles.calls]
        weight, given, ns = (np.array([x for part in parts for x in part[i]], np.int64) for i in range(3))
        queue = TileQueue(
            lane=tiles.lane, op=tiles.call, signal=events.signal, wait_ptr=events.wait_ptr,
            wait_event=events.wait_event, threshold=events.threshold, weight_ns=weight, input_ns=given,
            compute_ns=ns, lanes=configuration.workers, ops=len(tiles.calls),
        )  # fmt: skip
        o = self.device.overheads["megakernel"][configuration.workers]
        mechanism = Mechanism(
            launch_ns=o.launch_ns, gap_ns=o.gap_ns, dispatch_ns=o.dispatch_ns, event_ns=o.event_ns,
            signal_ns=o.signal_ns, drain_ns=o.drain_ns,
            prefetch_depth=self.device.prefetch_depth if held is None else held.pages,
        )  # fmt: skip
        run = reference.simulate(queue, mechanism)
        begun = dict.fromkeys(range(queue.lanes), o.launch_ns)
        done = dict(begun)
        for lane, begin, end in zip(queue.lane.tolist(), run.begin_ns.tolist(), run.end_ns.tolist(), strict=True):
            begun[lane], done[lane] = begin, end + o.signal_ns
        end = run.makespan_ns
        return end, (max(begun.values()) - end, {lane: at - end for lane, at in done.items()})


def _parts(costs: TileCosts) -> tuple[list[int], list[int], list[int]]:
    """Loads of weights, loads of inputs, and bodies; no loads where they are in the body."""
    nothing = [0] * len(costs.ns)
    return (
        nothing if costs.weight_ns is None else costs.weight_ns.tolist(),
        nothing if costs.input_ns is None else costs.input_ns.tolist(),
        costs.ns.tolist(),
    )


def _unrolled(node: Node, index: dict[str, int]) -> list[Call]:
    if isinstance(node, Operator):
        return [Call(node, index)]
    if isinstance(node, Seq):
        return [call for inner in node.body for call in _unrolled(inner, index)]
    return [
        call for i in range(node.count) for inner in node.body for call in _unrolled(inner, {**index, node.name: i})
    ]
