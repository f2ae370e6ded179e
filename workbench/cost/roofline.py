"""Analytical tile times on a GPU, for operators that nobody has benchmarked: a roofline with few-tile operators.

Memory time of a tile is its bytes over the smaller of two rates (DESIGN: fair share, and Little's law, J. D. C. Little
1961): ``achieved bandwidth / tiles at once`` and ``bytes in flight / latency`` of an SM; and no more than its port
takes. So an operator of few tiles cannot take the whole bandwidth, nor can bodies whose kernel has few warps on an SM
(``resources``). Inputs that fit into L2 come from there at a multiple of that rate; attention's cache and a scan's
state come from DRAM, and like weights through pages.
A tile reads all of its rows of a product's input, whatever its columns, and all weights of its columns, whatever its
rows: weights that fit into L2 are read from DRAM once, and then from there.
Weights up to a page are loaded before the body, the rest while it works, and the body takes the longer of the two.
Arithmetic runs on CUDA cores or on tensor cores (``Gpu.flops_per_s``). All constants are in the device's file. Effects
that are left out (``effects``): without waves, tiles divide evenly over the lanes.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil

import numpy as np

from workbench.compose import Configuration
from workbench.cost.resources import PAGE_BYTES, Held, body, flight
from workbench.cost.table import TileCosts
from workbench.gpu import PREFETCH_DEPTH, Gpu
from workbench.hardware import Provenance
from workbench.lower.lowering import operator_cut
from workbench.program import Call, Operator
from workbench.shapes import Attention, Conv, Experts, Matmul, Scan

# How a megakernel may cut operators, after ``SMs x``: as Hazy's latency kernel does; twice as many tiles of at most 64
# rows, and attention's cache in parts; four times as many of at most 128 rows (as Hazy's throughput kernel has).
TILINGS = ("1+c16+i2048+p1", "2+r64+p8", "4+r128+p4")


class Roofline:
    """Tile times of one GPU; answers what ``CostTable`` answers, with provenance ``analytical`` or worse."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.configurations = [Configuration.parse(f"{gpu.workers}x{tiling}") for tiling in TILINGS]
        self.kernel_configurations = [Configuration.parse(f"{gpu.sm_count}x{tiling}") for tiling in TILINGS]
        self.region_costs: dict[Hashable, object] = {}  # filled by ``predict``, by content
        self._memo: dict[tuple[Operator, int, int, Configuration, Held | None], TileCosts] = {}

    def call_tiles(self, call: Call, batch: int, configuration: Configuration, held: Held | None = None) -> TileCosts:
        """Times of the tiles of one call, in tile order."""
        return self.tiles(call.operator, batch, call.position, configuration, held)

    def tiles(
        self,
        operator: Operator,
        batch: int,
        position: int,
        configuration: Configuration,
        held: Held | None = None,
    ) -> TileCosts:
        """Times of the tiles that ``operator`` is cut into under ``configuration``, in tile order.

        In a megakernel whose blocks have ``held`` of an SM; None: as a kernel of its own.
        """
        if not isinstance(operator.shape, Attention):
            position = 0
        key = (operator, batch, position, configuration, held)
        if key not in self._memo:
            self._memo[key] = self._tiles(operator, batch, position, configuration, held)
        return self._memo[key]

    def _tiles(
        self,
        operator: Operator,
        batch: int,
        position: int,
        configuration: Configuration,
        held: Held | None,
    ) -> TileCosts:
        on = self.gpu.effects
        grid = operator_cut(operator, batch, configuration)
        share = grid.shares()
        work = operator.work(batch, position)
        kind = body(operator.shape, batch, configuration, self.gpu.mma_rows)
        tile_rate, staged_rate, cached_rate = self._bytes_per_ns(kind, held, len(share), configuration.workers)
        product = isinstance(operator.shape, Matmul | Experts | Conv)
        inputs = work.read_bytes * (grid.shares(("requests", "rows", "inner")) if product else share)
        rate = tile_rate
        if isinstance(operator.shape, Attention | Scan):
            rate = staged_rate
        elif on.l2 and work.read_bytes <= self.gpu["l2_bytes"]:
            rate = cached_rate
        strip = grid.shares(("inner", "columns")) if product else share
        weights = strip * work.weight_bytes
        weight_rate = np.full(len(share), staged_rate)
        again = share < strip  # others read the same weights
        if on.l2 and work.weight_bytes <= self.gpu["l2_bytes"] and again.any():
            weight_rate[again] = np.minimum(staged_rate * strip[again] / share[again], cached_rate)
        ahead = np.minimum(weights, PAGE_BYTES)
        flops_per_ns = self.gpu.flops_per_s(batch * operator.shape.rows, operator.element_bytes) / 1e9
        times = [
            ahead / weight_rate,
            (weights - ahead) / weight_rate,
            inputs / rate,
            share * work.flops / (flops_per_ns / self.gpu.sm_count),
        ]
        waves = len(share) / configuration.workers
        if not on.waves and waves > 1:
            times = [time * waves / ceil(waves) for time in times]
        weight, streamed, given, compute = (np.ceil(t).astype(np.int64) for t in times)
        if held is not None:
            compute += held.tile_ns + dict(held.spill_ns).get(kind, 0)
        provenance = self.gpu.provenance("dram_bytes_per_s", "clock_hz", "latency_ns", "compute_frac")
        return TileCosts(
            ns=np.maximum(1, np.maximum(compute, streamed)), spread_frac=self.gpu["error_frac"],
            provenance=Provenance.ASSUMED if provenance is Provenance.ASSUMED else Provenance.ANALYTICAL,
            weight_ns=weight, input_ns=given, streams=streamed > compute,
            loads=(
                np.ceil(ahead * staged_rate / weight_rate).astype(np.int64),
                np.ceil(inputs * tile_rate / rate).astype(np.int64),
            ),
        )  # fmt: skip

    def _bytes_per_ns(self, kind: str, held: Held | None, tiles: int, workers: int) -> tuple[float, float, float]:
        """Of one tile: from DRAM by itself, from DRAM through pages (weights, caches, states), and from L2.

        The smallest of its fair share, what it has in flight, and the SM's port.
        """
        gpu, on = self.gpu, self.gpu.effects
        whole, port = gpu.achieved_bytes_per_s / 1e9, gpu.port_bytes_per_s / 1e9
        fair = whole / min(tiles, workers) if on.shared_bandwidth else whole
        if not on.few_tiles:
            return fair, fair, fair * gpu["l2_over_dram"]
        per_warp, latency_ns = gpu["bytes_in_flight_per_warp"], gpu["latency_ns"]
        loads = flight(kind, held, gpu.multiprocessor, per_warp, PREFETCH_DEPTH, ceil(tiles / workers))
        alone, staged = loads.body_bytes / latency_ns, loads.staged_bytes / latency_ns
        return min(fair, alone, port), min(fair, staged, port), min(min(fair, alone) * gpu["l2_over_dram"], port)
