"""Mixtures of experts: cut along columns. Whose a column is turns out at run time; a box is its expected share.

A tile needs all of its input: the router's logits say whose rows it works on, and a sum over experts takes them all.
"""

from __future__ import annotations

from workbench.compose import Configuration
from workbench.lower.cut import COLUMN_UNIT, runs
from workbench.shapes import Experts, Shape
from workbench.tiles import Grid


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Column strips of the chosen experts and the shared one, side by side."""
    assert isinstance(shape, Experts)
    return Grid((0, batch), (0, shape.rows), runs(shape.columns, COLUMN_UNIT, configuration.count))
