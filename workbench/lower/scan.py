"""Selective scan: cut along heads, then requests; a tile needs what belongs to its heads and groups."""

from __future__ import annotations

from workbench.compose import Configuration
from workbench.lower.attention import head_runs
from workbench.lower.cut import Boxes, Window, at, own_columns, window
from workbench.shapes import Depthwise, Matmul, Reduce, Scan, Shape, output_size
from workbench.tiles import Grid


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Runs of whole heads; where there are fewer heads than tiles wanted, runs of requests too."""
    assert isinstance(shape, Scan)
    requests, columns = head_runs(shape.heads, shape.head_dim, batch, configuration.count)
    return Grid(requests, (0, shape.rows), columns)


def needs(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """Columns of x, B and C; columns of the projection that are gate and time steps.

    All of the state, which is written in place: writers of a tensor follow each other whole.
    """
    assert isinstance(shape, Scan)
    first, last = at(boxes, "column_start") // shape.head_dim, at(boxes, "column_stop") // shape.head_dim
    rows, mine = (0, shape.rows), own_columns(boxes)
    if tensor_rank == 0 and isinstance(producer, Depthwise) and output_size(producer) == (shape.rows, shape.channels):
        a_group = shape.heads // shape.groups
        low, high = first // a_group * shape.state, ((last - 1) // a_group + 1) * shape.state
        inputs, keys = shape.heads * shape.head_dim, shape.groups * shape.state
        columns = [mine, (inputs + low, inputs + high), (inputs + keys + low, inputs + keys + high)]
    elif tensor_rank == 1 and isinstance(producer, Matmul | Reduce):
        if output_size(producer) != (shape.rows, shape.projected):
            return None
        steps = shape.projected - shape.heads
        columns = [mine, (steps + first, steps + last)]
    else:
        return None
    return [window(boxes, rows, among) for among in columns]
