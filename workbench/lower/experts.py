"""Mixtures of experts: cut along columns. Whose a column is turns out at run time; a box is its expected share.

A tile needs all of its input: the router's logits say whose rows it works on, and a sum over experts takes them all.
"""

from __future__ import annotations

from workbench.lower.matmul import COLUMN_UNIT, spans
from workbench.shapes import Experts, Shape
from workbench.tiles import Box


def boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Column strips of the chosen experts and the shared one, side by side."""
    assert isinstance(shape, Experts)
    return [Box(0, batch, 0, shape.rows, a, b) for a, b in spans(shape.columns, COLUMN_UNIT, count)]


def needs(shape: Shape, box: Box, tensor_rank: int, producer: Shape) -> list[Box] | None:
    """All columns."""
    return None
