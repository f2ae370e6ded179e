"""Time to first output by walking the program as it runs: one launch after another, each simulated by itself.

Independent of ``predict``: loops are unrolled here, a region's calls are lowered alone (not as a slice of their level),
megakernels run in the plain reference simulator, and conventional regions are added up by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.compose import Composition, Configuration, Kind, Region
from workbench.cost import CostTable
from workbench.hardware import Device
from workbench.lower.lowering import lower_calls
from workbench.program import Call, Loop, Node, Operator, Seq
from workbench.simulate import Mechanism, TileQueue, reference


@dataclass
class Walk:
    """Launches of a composition in order, with their times in ns."""

    device: Device
    table: CostTable
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
        if arm != "replay":
            whole = self.table.whole(call.operator, self.batch, call.position, arm).ns
            return o.dispatch_ns + int(whole[0]) + o.signal_ns
        times = []
        for configuration in self.table.configurations:
            lanes = [0] * configuration.workers
            for tile, ns in enumerate(self.table.tiles(call.operator, self.batch, call.position, configuration).ns):
                lanes[tile % configuration.workers] += o.dispatch_ns + int(ns) + o.signal_ns
            times.append(max(lanes))
        return min(times)

    def _megakernel_ns(self, configuration: Configuration, sequence: list[Call]) -> int:
        lowered = lower_calls(tuple(sequence), (len(sequence),), self.batch, configuration)
        tiles, events = lowered.tiles, lowered.events
        ns = np.concatenate(
            [self.table.tiles(call.operator, self.batch, call.position, configuration).ns for call in sequence]
        )
        nothing = np.zeros_like(ns)
        queue = TileQueue(
            lane=tiles.lane, op=tiles.call, signal=events.signal, wait_ptr=events.wait_ptr,
            wait_event=events.wait_event, threshold=events.threshold, weight_ns=nothing, input_ns=nothing,
            compute_ns=ns, lanes=configuration.workers, ops=len(sequence),
        )  # fmt: skip
        o = self.device.overheads["megakernel"][configuration.workers]
        mechanism = Mechanism(
            launch_ns=o.launch_ns, gap_ns=o.gap_ns, dispatch_ns=o.dispatch_ns, event_ns=o.event_ns,
            signal_ns=o.signal_ns, drain_ns=o.drain_ns,
        )  # fmt: skip
        return reference.simulate(queue, mechanism).makespan_ns


def _unrolled(node: Node, index: dict[str, int]) -> list[Call]:
    if isinstance(node, Operator):
        return [Call(node, index)]
    if isinstance(node, Seq):
        return [call for inner in node.body for call in _unrolled(inner, index)]
    return [
        call for i in range(node.count) for inner in node.body for call in _unrolled(inner, {**index, node.name: i})
    ]
