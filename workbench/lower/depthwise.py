"""Depthwise convolutions: cut along channels, each weight read by one tile; a tile needs its own channels."""

from __future__ import annotations

from workbench.lower.matmul import COLUMN_UNIT, spans
from workbench.shapes import Conv, Depthwise, Matmul, Shape
from workbench.tiles import Box


def boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Strips of whole channels over all time: the state of a channel is one tile's."""
    assert isinstance(shape, Depthwise)
    return [Box(0, batch, 0, shape.rows, a, b) for a, b in spans(shape.channels, COLUMN_UNIT, count)]


def needs(shape: Shape, box: Box, tensor_rank: int, producer: Shape) -> list[Box] | None:
    """Its channels in the columns of the input; all of the state, which is written in place."""
    assert isinstance(shape, Depthwise)
    if tensor_rank > 0:
        return None
    if isinstance(producer, Matmul):
        rows, columns = producer.rows, producer.outer
    elif isinstance(producer, Conv):
        rows, columns = producer.rows * producer.stride, producer.channels_out
    else:
        return None
    if rows != shape.rows or columns != (shape.width or shape.channels):
        return None
    return [box._replace(column_start=shape.offset + box.column_start, column_stop=shape.offset + box.column_stop)]
