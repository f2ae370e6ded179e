"""Matrix products, gathers and argmax: cut along columns where weights are, along requests where there are none."""

from __future__ import annotations

from itertools import pairwise

from workbench.shapes import Argmax, Gather, Matmul, Shape
from workbench.tiles import Box

COLUMN_UNIT = 16  # narrowest column strip: one cache line of fp32, and Hazy's tile height on GPUs


def spans(length: int, unit: int, count: int) -> list[tuple[int, int]]:
    """``range(length)`` in at most ``count`` near-equal runs of whole units (the last unit may be short)."""
    units = -(-length // unit)
    count = max(1, min(count, units))
    edges = [min(length, unit * (units * i // count)) for i in range(count + 1)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def matmul_boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Column strips of whole heads, or of COLUMN_UNIT: each weight is read by one tile."""
    assert isinstance(shape, Matmul)
    unit = shape.heads or COLUMN_UNIT
    return [Box(0, batch, 0, shape.rows, a, b) for a, b in spans(shape.outer, unit, count)]


def request_boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Runs of whole requests."""
    assert isinstance(shape, Gather | Argmax)
    columns = shape.width if isinstance(shape, Gather) else 1
    return [Box(a, b, 0, shape.rows, 0, columns) for a, b in spans(batch, 1, count)]


def needs_all(shape: Shape, box: Box, tensor_rank: int, producer: Shape) -> list[Box] | None:
    """A dense product needs every column of its input."""
    return None
