"""Time to first output by walking the program as it runs: one launch after another, each simulated by itself.

Independent of ``predict``: loops are unrolled here, a region's calls are lowered alone (not as a slice of their level),
megakernels run in the plain reference simulator, and conventional regions are added up by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.compose import Composition, Configuration, Kind, Region
from workbench.cost import Costs, CostTable, TileCosts
from workbench.hardware import Device, Overheads
from workbench.lower.lowering import lower_calls
from workbench.program import Call, Loop, Node, Operator, Seq
from workbench.simulate import Mechanism, TileQueue, reference


@dataclass
class Walk:
    """Launches of a composition in order, with their times in ns."""

    device: Device
    table: Costs
    batch: int
    launches: list[tuple[Region, int]] = field(default_factory=list)
    _seen: dict[object, int] = field(default_factory=dict)

    def run(self, nodes: tuple[Node, ...], composition: Composition) -> int:
        """Total time of ``nodes`` under ``composition``, whose other items are left out."""
        self.launches.clear()
        self._level(list(nodes), {}, {item: region for region in composition.regions for item in region.items})
        return sum(ns for _, ns in self.launches)

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
        key = (region, tuple((call.operator.name, call.position) for call in sequence))
        if key not in self._seen:
            self._seen[key] = self._ns(region, sequence)
        self.launches.append((region, self._seen[key]))

    def _ns(self, region: Region, sequence: list[Call]) -> int:
        if region.kind is Kind.CONVENTIONAL:
            o = self.device.overheads[region.arm][self.device.workers]
            kernels = [self._kernel_ns(region.arm, call) for call in sequence]
            return o.launch_ns + sum(o.gap_ns + ns for ns in kernels) + o.drain_ns
        assert region.configuration is not None
        return self._megakernel_ns(region.configuration, sequence)

    def _kernel_ns(self, arm: str, call: Call) -> int:
        """One conventional kernel: its slowest lane, under the configuration in which that is fastest."""
        o = self.device.overheads[arm][self.device.workers]
        if arm in self.device.whole_arms:
            assert isinstance(self.table, CostTable)
            whole = self.table.whole(call.operator, self.batch, call.position, arm).ns
            return o.dispatch_ns + int(whole[0]) + o.signal_ns
        # the choice is made once, with the overheads of the device's first such arm, each tile by itself
        first = next(arm for arm in self.device.arms if arm not in self.device.whole_arms)
        chosen = self.device.overheads[first][self.device.workers]
        fit = [c for c in self.table.configurations if c.workers <= self.device.workers]
        alone = {c: self._slowest_lane_ns(call, c, chosen, prefetch=False) for c in fit}
        best = min(alone, key=lambda c: (alone[c], c.workers, c.tiles_per_worker))
        return self._slowest_lane_ns(call, best, o, prefetch=self.device.prefetch_depth > 0)

    def _slowest_lane_ns(self, call: Call, configuration: Configuration, o: Overheads, *, prefetch: bool) -> int:
        """With ``prefetch`` a tile's weights come from when the tile before has ended, else after its own dispatch."""
        costs = self.table.tiles(call.operator, self.batch, call.position, configuration)
        lanes = [0] * configuration.workers
        ended = [0] * configuration.workers
        for tile, (weight, given, ns) in enumerate(zip(*_parts(costs), strict=True)):
            lane = tile % configuration.workers
            begin = lanes[lane] + o.dispatch_ns
            loaded = (ended[lane] if prefetch else begin) + weight
            ended[lane] = max(begin + given, loaded) + ns
            lanes[lane] = ended[lane] + o.signal_ns
        return max(lanes)

    def _megakernel_ns(self, configuration: Configuration, sequence: list[Call]) -> int:
        lowered = lower_calls(tuple(sequence), (len(sequence),), self.batch, configuration)
        tiles, events = lowered.tiles, lowered.events
        parts = [_parts(self.table.tiles(c.operator, self.batch, c.position, configuration)) for c in sequence]
        weight, given, ns = (np.array([x for part in parts for x in part[i]], np.int64) for i in range(3))
        queue = TileQueue(
            lane=tiles.lane, op=tiles.call, signal=events.signal, wait_ptr=events.wait_ptr,
            wait_event=events.wait_event, threshold=events.threshold, weight_ns=weight, input_ns=given,
            compute_ns=ns, lanes=configuration.workers, ops=len(sequence),
        )  # fmt: skip
        o = self.device.overheads["megakernel"][configuration.workers]
        mechanism = Mechanism(
            launch_ns=o.launch_ns, gap_ns=o.gap_ns, dispatch_ns=o.dispatch_ns, event_ns=o.event_ns,
            signal_ns=o.signal_ns, drain_ns=o.drain_ns, prefetch_depth=self.device.prefetch_depth,
        )  # fmt: skip
        return reference.simulate(queue, mechanism).makespan_ns


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
