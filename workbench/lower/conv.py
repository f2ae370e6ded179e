"""Causal convolutions: cut along requests, else along time, else along channels; a tile needs its window of time.

Where there are fewer strips of time than tiles wanted, wide convolutions are cut along channels as well.
"""

from __future__ import annotations

import numpy as np

from workbench.compose import Configuration
from workbench.lower.cut import FAR, Boxes, Window, at, own_columns, own_rows, runs, scaled, window
from workbench.shapes import Conv, Gather, Shape, output_size
from workbench.tiles import Grid

CHANNEL_UNIT = 4
TIME_UNIT = 16
WIDE = 64  # channels from which strips of time are cut into strips of channels too, of WIDE_UNIT each
WIDE_UNIT = 16
LONG_ROWS = 64  # from here on a strip of time is long enough for vector loops, and its halo is small


def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """Boxes in output samples. Whole requests first: they share no input, so their tiles never wait for each other."""
    assert isinstance(shape, Conv)
    count, channels = configuration.count, shape.channels_out
    length = shape.rows * shape.stride
    if batch >= count:
        return Grid(runs(batch, 1, count), (0, length), (0, channels))
    if shape.rows >= LONG_ROWS or channels == 1:
        strips = runs(shape.rows, TIME_UNIT, count)
        parts = _parts(channels, count // (len(strips) - 1))
        return Grid((0, batch), scaled(strips, shape.stride), runs(channels, channels // parts, count))
    return Grid((0, batch), (0, length), runs(channels, CHANNEL_UNIT, count))


def _parts(channels: int, most: int) -> int:
    """Equal strips of whole units that a wide convolution's channels are cut into, ``most`` at most."""
    if channels < WIDE or channels % WIDE_UNIT:
        return 1
    return max(n for n in range(1, max(1, most) + 1) if channels // WIDE_UNIT % n == 0)


def needs(shape: Shape, boxes: Boxes, tensor_rank: int, producer: Shape) -> list[Window] | None:
    """The window of input time, and for the second tensor read (the residual) the tile's own box."""
    assert isinstance(shape, Conv)
    if not isinstance(producer, Conv | Gather):
        return None
    made, _ = output_size(producer)
    if tensor_rank > 0:
        fits = shape.residual and tensor_rank == 1 and made == shape.rows * shape.stride
        return [window(boxes, own_rows(boxes), own_columns(boxes))] if fits else None
    if made != shape.rows:
        return None
    reach = shape.taps - 1 if shape.stride > 1 else (shape.kernel - 1) * shape.dilation
    start, stop = at(boxes, "row_start") // shape.stride, -(-at(boxes, "row_stop") // shape.stride)
    return [window(boxes, (np.maximum(0, start - reach), stop), (0, FAR))]
