"""Gathers, argmax and sums of partial results: no weights to share, so they are cut along requests (sums: columns)."""

from __future__ import annotations

from workbench.compose import Configuration
from workbench.lower.cut import COLUMN_UNIT, Boxes, Window, own_columns, own_rows, runs, window
from workbench.shapes import Argmax, Gather, Reduce, Shape, output_size
from workbench.tiles import Grid


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Runs of whole requests."""
    assert isinstance(shape, Gather | Argmax)
    return Grid(runs(batch, 1, configuration.count), (0, shape.rows), (0, output_size(shape)[1]))


def needs_all(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """Any row may be looked up; the greatest may be in any column."""
    return None


def cut_reduce(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Requests, then strips of columns."""
    assert isinstance(shape, Reduce)
    requests = runs(batch, 1, configuration.count)
    unit = max(shape.unit, 1) if shape.unit > 1 else COLUMN_UNIT
    columns = runs(shape.width, unit, configuration.count // (len(requests) - 1))
    return Grid(requests, (0, shape.rows), columns)


def reduce_needs(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """All parts of its own box."""
    assert isinstance(shape, Reduce)
    if output_size(producer) != (shape.rows, shape.width):
        return None
    return [window(boxes, own_rows(boxes), own_columns(boxes))]
