"""Attention: cut along query heads; a tile needs its own heads' queries, keys and values."""

from __future__ import annotations

from workbench.lower.matmul import spans
from workbench.shapes import Attention, Matmul, Shape
from workbench.tiles import Box

FAR = 1 << 40


def boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Runs of whole query heads."""
    assert isinstance(shape, Attention)
    return [
        Box(0, batch, 0, shape.rows, a * shape.head_dim, b * shape.head_dim) for a, b in spans(shape.heads, 1, count)
    ]


def needs(shape: Shape, box: Box, tensor_rank: int, producer: Shape) -> list[Box] | None:
    """Columns of the QKV product that hold this tile's query heads and their key and value heads."""
    assert isinstance(shape, Attention)
    width, group = shape.head_dim, shape.heads // shape.kv_heads
    queries, keys = shape.heads * width, shape.kv_heads * width
    if not (isinstance(producer, Matmul) and producer.heads == width and producer.outer == queries + 2 * keys):
        return None
    first = box.column_start // width // group * width
    last = ((box.column_stop - 1) // width // group + 1) * width
    columns = [
        (box.column_start, box.column_stop),
        (queries + first, queries + last),
        (queries + keys + first, queries + keys + last),
    ]
    return [Box(box.request_start, box.request_stop, 0, FAR, a, b) for a, b in columns]
