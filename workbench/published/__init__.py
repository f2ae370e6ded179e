"""Published measurements against predictions: what ships in ``data/published``, row by row, nothing refitted.

rows ─► mapping (cases of parts) ─► predicted ─► check ─► errors, pairs, worst rows
                                      ▲            ▲
                  the simulator, or analytic       explain
"""

from __future__ import annotations

from workbench.published.analytic import composition_ns
from workbench.published.check import Check, Entry, published_check, rows_of
from workbench.published.mapping import REASONS, case_of
from workbench.published.pairs import pair_records
from workbench.published.predicted import Predicted, Predictor
from workbench.published.rows import Row, duplicates, read_rows

__all__ = [
    "REASONS",
    "Check",
    "Entry",
    "Predicted",
    "Predictor",
    "Row",
    "case_of",
    "composition_ns",
    "duplicates",
    "pair_records",
    "published_check",
    "read_rows",
    "rows_of",
]
