"""Causal convolutions: cut along requests, else along time, else along channels; a tile needs its window of time.

Where there are fewer strips of time than tiles wanted, wide convolutions are cut along channels as well.
"""

from __future__ import annotations

from workbench.lower.matmul import spans
from workbench.shapes import Conv, Gather, Shape
from workbench.tiles import Box

CHANNEL_UNIT = 4
TIME_UNIT = 16
WIDE = 64  # channels from which strips of time are cut into strips of channels too, of WIDE_UNIT each
WIDE_UNIT = 16
LONG_ROWS = 64  # from here on a strip of time is long enough for vector loops, and its halo is small
FAR = 1 << 40


def boxes(shape: Shape, batch: int, count: int) -> list[Box]:
    """Boxes in output samples. Whole requests first: they share no input, so their tiles never wait for each other."""
    assert isinstance(shape, Conv)
    stride, channels = shape.stride, shape.channels_out
    if batch >= count:
        return [Box(a, b, 0, shape.rows * stride, 0, channels) for a, b in spans(batch, 1, count)]
    if shape.rows >= LONG_ROWS or channels == 1:
        strips = spans(shape.rows, TIME_UNIT, count)
        parts = spans(channels, channels // _parts(channels, count // len(strips)), count)
        return [Box(0, batch, a * stride, b * stride, c, d) for a, b in strips for c, d in parts]
    return [Box(0, batch, 0, shape.rows * stride, a, b) for a, b in spans(channels, CHANNEL_UNIT, count)]


def _parts(channels: int, most: int) -> int:
    """Equal strips of whole units that a wide convolution's channels are cut into, ``most`` at most."""
    if channels < WIDE or channels % WIDE_UNIT:
        return 1
    return max(n for n in range(1, max(1, most) + 1) if channels // WIDE_UNIT % n == 0)


def needs(shape: Shape, box: Box, tensor_rank: int, producer: Shape) -> list[Box] | None:
    """The window of input time, and for the second tensor read (the residual) the tile's own box."""
    assert isinstance(shape, Conv)
    if not isinstance(producer, Conv | Gather):
        return None
    made = producer.rows * (producer.stride if isinstance(producer, Conv) else 1)
    if tensor_rank > 0:
        return [box] if shape.residual and tensor_rank == 1 and made == shape.rows * shape.stride else None
    if made != shape.rows:
        return None
    reach = shape.taps - 1 if shape.stride > 1 else (shape.kernel - 1) * shape.dilation
    start, stop = box.row_start // shape.stride, -(-box.row_stop // shape.stride)
    return [Box(box.request_start, box.request_stop, max(0, start - reach), stop, 0, FAR)]
