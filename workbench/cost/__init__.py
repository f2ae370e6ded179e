"""What a tile costs: tables of standalone benchmarks, and how to read between their rows."""

from __future__ import annotations

from workbench.cost.table import COLUMNS, CostTable, TileCosts, read_table

__all__ = ["COLUMNS", "CostTable", "TileCosts", "read_table"]
