"""Analytical tile times on a GPU, for operators that nobody has benchmarked: a roofline with few-tile operators.

Memory time of a tile is its bytes over the smaller of two rates (DESIGN: fair share, and Little's law, J. D. C. Little
1961): ``achieved bandwidth / tiles at once`` and ``bytes in flight / latency`` of an SM. So an operator of few tiles
cannot take the whole bandwidth. Inputs come from L2 at a multiple of that rate, except attention's cache and a scan's
state, which come from DRAM. Weights up to a page are loaded before the body, the rest while it works, and the body
takes the longer of the two. Arithmetic runs on CUDA cores or on tensor cores, at a fraction of peak, where rows are
filled up to whole tiles of MMA_ROWS: on whichever is faster. All constants are in the device's file.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from workbench.compose import Configuration
from workbench.cost.resources import PAGE_BYTES
from workbench.cost.table import TileCosts
from workbench.gpu import MMA_ROWS, Gpu
from workbench.hardware import Provenance
from workbench.lower.lowering import operator_cut
from workbench.program import Call, Operator
from workbench.shapes import Attention, Experts, Matmul, Scan

# How a megakernel may cut operators, after ``SMs x``: as Hazy's latency kernel does; twice as many tiles of at most 64
# rows, and attention's cache in parts; four times as many of at most 128 rows (as Hazy's throughput kernel has).
TILINGS = ("1+c16+i2048+p1", "2+r64+p8", "4+r128+p4")


class Roofline:
    """Tile times of one GPU; answers what ``CostTable`` answers, with provenance ``analytical`` or worse."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.configurations = [Configuration.parse(f"{gpu.sm_count}x{tiling}") for tiling in TILINGS]
        self.region_costs: dict[Hashable, object] = {}  # filled by ``predict``, by content
        self._memo: dict[tuple[Operator, int, int, Configuration], TileCosts] = {}

    def call_tiles(self, call: Call, batch: int, configuration: Configuration) -> TileCosts:
        """Times of the tiles of one call, in tile order."""
        return self.tiles(call.operator, batch, call.position, configuration)

    def tiles(self, operator: Operator, batch: int, position: int, configuration: Configuration) -> TileCosts:
        """Times of the tiles that ``operator`` is cut into under ``configuration``, in tile order."""
        if not isinstance(operator.shape, Attention):
            position = 0
        key = (operator, batch, position, configuration)
        if key not in self._memo:
            self._memo[key] = self._tiles(operator, batch, position, configuration)
        return self._memo[key]

    def _tiles(self, operator: Operator, batch: int, position: int, configuration: Configuration) -> TileCosts:
        share = operator_cut(operator, batch, configuration).shares()
        work = operator.work(batch, position)
        at_once = min(len(share), configuration.workers)
        dram = min(self.gpu.achieved_bytes_per_s / at_once, self._little_bytes_per_s()) / 1e9  # bytes a ns
        inputs = work.read_bytes * (np.ones_like(share) if isinstance(operator.shape, Matmul | Experts) else share)
        from_dram = 1.0 if isinstance(operator.shape, Attention | Scan) else self.gpu["l2_over_dram"]
        rows = batch * operator.shape.rows
        weights = share * work.weight_bytes
        ahead = np.minimum(weights, PAGE_BYTES)
        times = [
            ahead / dram,
            (weights - ahead) / dram,
            inputs / (dram * from_dram),
            share * work.flops / self._flops_per_ns(rows),
        ]
        weight, streamed, given, compute = (np.ceil(t).astype(np.int64) for t in times)
        provenance = self.gpu.provenance("dram_bytes_per_s", "clock_hz", "latency_ns", "compute_frac")
        return TileCosts(
            ns=np.maximum(1, np.maximum(compute, streamed)), spread_frac=self.gpu["error_frac"],
            provenance=Provenance.ASSUMED if provenance is Provenance.ASSUMED else Provenance.ANALYTICAL,
            weight_ns=weight, input_ns=given, streams=streamed > compute,
        )  # fmt: skip

    def _little_bytes_per_s(self) -> float:
        return self.gpu["bytes_in_flight_per_sm"] / (self.gpu["latency_ns"] * 1e-9)

    def _flops_per_ns(self, rows: int) -> float:
        """Of one SM, of those that count: rows that only fill a tile up do not."""
        if rows < self.gpu.mma_rows:
            return self.gpu.cuda_flops_per_s / self.gpu.sm_count / 1e9
        filled = rows / (-(-rows // MMA_ROWS) * MMA_ROWS)
        return self.gpu.mma_flops_per_s * filled / self.gpu.sm_count / 1e9
