"""How an axis is cut into runs, and what a tile needs of a producer, as arrays over all tiles of a reader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workbench.tiles import Box, Edges

Boxes = npt.NDArray[np.int64]  # (tiles, 8), fields as in Box
Window = npt.NDArray[np.int64]  # (tiles, 6): requests, rows and columns of a producer's output, half-open
Bound = int | npt.NDArray[np.int64]

COLUMN_UNIT = 16  # narrowest column strip: one cache line of fp32, and Hazy's tile height on GPUs
FAR = 1 << 40
FIELD = {name: i for i, name in enumerate(Box._fields)}


def runs(length: int, unit: int, count: int) -> Edges:
    """Edges of ``range(length)`` in at most ``count`` near-equal runs of whole units (the last unit may be short).

    >>> runs(192, 16, 5)
    (0, 32, 64, 112, 144, 192)
    """
    units = -(-length // unit)
    count = max(1, min(count, units))
    return tuple(min(length, unit * (units * i // count)) for i in range(count + 1))


def scaled(edges: Edges, factor: int) -> Edges:
    """The same runs in units of ``1 / factor``."""
    return tuple(edge * factor for edge in edges)


def row_blocks(batch: int, rows: int, most: int) -> tuple[Edges, Edges]:
    """Edges of requests and of rows such that a block has at most ``most`` rows of all requests together; 0: no bound.

    Whole requests stay together while they fit.
    """
    if not most or batch * rows <= most:
        return (0, batch), (0, rows)
    if rows >= most:
        return tuple(range(batch + 1)), runs(rows, 1, -(-rows // most))
    return runs(batch, 1, -(-batch // (most // rows))), (0, rows)


def at(boxes: Boxes, name: str) -> npt.NDArray[np.int64]:
    """One field of all boxes."""
    column: npt.NDArray[np.int64] = boxes[:, FIELD[name]]
    return column


def window(boxes: Boxes, rows: tuple[Bound, Bound], columns: tuple[Bound, Bound]) -> Window:
    """Of each tile's own requests these rows and columns."""
    bounds: Sequence[Bound] = (at(boxes, "request_start"), at(boxes, "request_stop"), *rows, *columns)
    return np.stack([np.broadcast_to(bound, len(boxes)) for bound in bounds], axis=1).astype(np.int64)


def own_rows(boxes: Boxes) -> tuple[Bound, Bound]:
    """The rows of each tile."""
    return at(boxes, "row_start"), at(boxes, "row_stop")


def own_columns(boxes: Boxes, offset: int = 0) -> tuple[Bound, Bound]:
    """The columns of each tile, ``offset`` further on."""
    return at(boxes, "column_start") + offset, at(boxes, "column_stop") + offset
