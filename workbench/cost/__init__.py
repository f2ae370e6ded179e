"""What a tile costs: tables of standalone benchmarks, and how to read between their rows."""

from __future__ import annotations

from workbench.cost.roofline import Roofline
from workbench.cost.table import COLUMNS, CostTable, TileCosts, read_table

Costs = CostTable | Roofline

__all__ = ["COLUMNS", "CostTable", "Costs", "Roofline", "TileCosts", "read_table"]
