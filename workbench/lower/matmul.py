"""Matrix products: cut along columns, each weight read by one tile; along rows and the reduction where asked for.

A product that is added to its output may be split along its reduction at no further cost (the parts are added one by
one, as Hazy's down projection does); another leaves partial sums, which ``lowering`` has a Reduce add up.
"""

from __future__ import annotations

from workbench.compose import Configuration
from workbench.lower.cut import (
    COLUMN_UNIT,
    FAR,
    FIELD,
    Boxes,
    Window,
    at,
    own_rows,
    row_blocks,
    runs,
    window,
)
from workbench.shapes import Matmul, Shape, output_size
from workbench.tiles import Grid


def parts(shape: Matmul, configuration: Configuration) -> int:
    """Runs of the reduction."""
    return -(-shape.inner // configuration.inner) if configuration.inner else 1


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Column strips of whole heads, or of COLUMN_UNIT, within blocks of rows and parts of the reduction."""
    assert isinstance(shape, Matmul)
    requests, rows = row_blocks(batch, shape.rows, configuration.rows)
    inner = runs(shape.inner, 1, parts(shape, configuration))
    unit = configuration.columns or COLUMN_UNIT
    if shape.heads and (shape.head_norm or not configuration.columns):
        unit = shape.heads
    blocks = (len(requests) - 1) * (len(rows) - 1) * (len(inner) - 1)
    return Grid(requests, rows, runs(shape.outer, unit, configuration.count // blocks), inner)


def needs(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """Its own rows of the input, all columns or those of its part of the reduction."""
    assert isinstance(shape, Matmul)
    rows, columns = output_size(producer)
    alike = [FIELD[name] for name in ("request_start", "row_start", "inner_start")]
    if rows != shape.rows or tensor_rank > 0 or (boxes[:, alike] == boxes[0, alike]).all():
        return None
    inner = (at(boxes, "inner_start"), at(boxes, "inner_stop")) if columns == shape.inner else (0, FAR)
    return [window(boxes, own_rows(boxes), inner)]
