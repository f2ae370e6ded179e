"""Selective scan: cut along heads, then requests; a tile needs what belongs to its heads and groups."""

from __future__ import annotations

from workbench.lower.attention import head_boxes
from workbench.shapes import Depthwise, Matmul, Scan, Shape
from workbench.tiles import Box


def boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Runs of whole heads; where there are fewer heads than tiles wanted, runs of requests too."""
    assert isinstance(shape, Scan)
    return head_boxes(shape.rows, shape.heads, shape.head_dim, batch, count)


def needs(shape: Shape, box: Box, tensor_rank: int, producer: Shape) -> list[Box] | None:
    """Columns of x, B and C; columns of the projection that are gate and time steps.

    All of the state, which is written in place: writers of a tensor follow each other whole.
    """
    assert isinstance(shape, Scan)
    first, last = box.column_start // shape.head_dim, box.column_stop // shape.head_dim
    if tensor_rank == 0 and isinstance(producer, Depthwise) and producer.channels == shape.channels:
        a_group = shape.heads // shape.groups
        low, high = first // a_group * shape.state, ((last - 1) // a_group + 1) * shape.state
        inputs, keys = shape.heads * shape.head_dim, shape.groups * shape.state
        columns = [(box.column_start, box.column_stop), (inputs + low, inputs + high)]
        columns.append((inputs + keys + low, inputs + keys + high))
    elif tensor_rank == 1 and isinstance(producer, Matmul) and producer.outer == shape.projected:
        steps = shape.projected - shape.heads
        columns = [(box.column_start, box.column_stop), (steps + first, steps + last)]
    else:
        return None
    return [Box(box.request_start, box.request_stop, 0, producer.rows, a, b) for a, b in columns]
