"""Depthwise convolutions: cut along channels, each weight read by one tile; a tile needs its own channels."""

from __future__ import annotations

from workbench.compose import Configuration
from workbench.lower.cut import COLUMN_UNIT, Boxes, Window, own_columns, own_rows, runs, window
from workbench.shapes import Conv, Depthwise, Matmul, Reduce, Shape, output_size
from workbench.tiles import Grid


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Strips of whole channels over all time: the state of a channel is one tile's."""
    assert isinstance(shape, Depthwise)
    return Grid((0, batch), (0, shape.rows), runs(shape.channels, COLUMN_UNIT, configuration.count))


def needs(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """Its channels in the columns of the input; all of the state, which is written in place."""
    assert isinstance(shape, Depthwise)
    known = isinstance(producer, Matmul | Conv | Reduce)
    if tensor_rank > 0 or not known or output_size(producer) != (shape.rows, shape.width or shape.channels):
        return None
    return [window(boxes, own_rows(boxes), own_columns(boxes, shape.offset))]
