"""Attention: cut along query heads, then along requests; a tile needs its own heads' queries, keys and values."""

from __future__ import annotations

from workbench.lower.matmul import spans
from workbench.shapes import Attention, Matmul, Shape
from workbench.tiles import Box

FAR = 1 << 40


def boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Runs of whole query heads; where there are fewer heads than tiles wanted, runs of requests too."""
    assert isinstance(shape, Attention)
    return head_boxes(shape.rows, shape.heads, shape.head_dim, batch, count)


def head_boxes(rows: int, heads: int, width: int, batch: int, count: int) -> list[Box]:
    """Runs of whole heads, and of requests where a head a tile leaves at least as many tiles to be had again."""
    strips = spans(heads, 1, count)
    requests = spans(batch, 1, count // len(strips))
    return [Box(r, s, 0, rows, a * width, b * width) for r, s in requests for a, b in strips]


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
