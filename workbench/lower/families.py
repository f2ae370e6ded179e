"""One module a family says how an operator is cut and what a tile needs; here they are put side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.compose import Configuration
from workbench.lower import attention, conv, depthwise, experts, lookup, matmul, scan
from workbench.lower.cut import Boxes, Window
from workbench.shapes import (
    Argmax,
    Attention,
    Conv,
    Depthwise,
    Experts,
    Gather,
    Matmul,
    Reduce,
    Scan,
    Shape,
)
from workbench.tiles import Edges, Grid


class Family(NamedTuple):
    """How one operator family is tiled: the cut of its output, and the windows of a producer's that each tile needs.

    ``needs`` is given the rank of the tensor among the operator's reads and answers None for all of the producer.
    """

    cut: Callable[[Shape, int, Configuration], Grid]
    needs: Callable[[Shape, Boxes, int, Shape], list[Window] | None]


FAMILIES: dict[type, Family] = {
    Matmul: Family(matmul.cut, matmul.needs),
    Gather: Family(lookup.cut, lookup.needs_all),
    Argmax: Family(lookup.cut, lookup.needs_all),
    Attention: Family(attention.cut, attention.needs),
    Conv: Family(conv.cut, conv.needs),
    Depthwise: Family(depthwise.cut, depthwise.needs),
    Scan: Family(scan.cut, scan.needs),
    Experts: Family(experts.cut, lookup.needs_all),
    Reduce: Family(lookup.cut_reduce, lookup.reduce_needs),
}
KEPT = 1 << 10  # shapes, or pairs of them, that are remembered


@lru_cache(KEPT)
def cut(shape: Shape, batch: int, configuration: Configuration) -> Grid:
    """The cut of one operator's output."""
    return FAMILIES[type(shape)].cut(shape, batch, configuration)


@lru_cache(KEPT)
def _boxes(grid: Grid) -> Boxes:
    return grid.array()


class Part:
    """Which tiles of a source each tile of a reader needs: ``matrix`` (reader's tiles, source's tiles).

    ``united`` are the source's tiles that any needs, as bits. ``by_request``: each tile needs all of the source that is
    of its own requests; ``covers``: the tiles of one run of requests need that together.
    """

    def __init__(self, matrix: npt.NDArray[np.bool_], same_requests: npt.NDArray[np.bool_], runs: int) -> None:
        self.matrix, self.same_requests, self.runs = matrix, same_requests, runs
        self.united = as_bits(np.asarray(matrix.any(axis=0)))
        self.by_request = bool((matrix | ~same_requests).all())
        a_run = len(matrix) // runs  # requests are the slowest axis of a cut
        together = matrix.reshape(runs, a_run, -1).any(axis=1)
        self.covers = bool((together | ~same_requests[::a_run]).all())

    def joined(self, other: Part) -> Part | None:
        """What either needs; None if that is all."""
        matrix = self.matrix | other.matrix
        return None if matrix.all() else Part(matrix, self.same_requests, self.runs)


def as_bits(mask: npt.NDArray[np.bool_]) -> int:
    """A mask as the bits of a number, entry 0 the lowest."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@lru_cache(KEPT)
def part(shape: Shape, rank: int, producer: Shape, batch: int, configuration: Configuration) -> Part | None:
    """What each tile of ``shape`` needs of ``producer``, which wrote the tensor that it reads; None: all of it.

    ``rank`` is the tensor's among the reads.
    """
    mine, made = cut(shape, batch, configuration), cut(producer, batch, configuration)
    windows = FAMILIES[type(shape)].needs(shape, _boxes(mine), rank, producer)
    if windows is None:
        return part_by_request(shape, producer, batch, configuration)
    return _part(_meeting(windows, made), mine, made)


@lru_cache(KEPT)
def part_by_request(shape: Shape, other: Shape, batch: int, configuration: Configuration) -> Part | None:
    """All tiles of ``other`` of a tile's own requests, for requests never meet; None where tiles' rows have no bound.

    There, requests are cut to have tiles enough, and an event a request would be one for each tile.
    """
    if not configuration.rows:
        return None
    mine, made = cut(shape, batch, configuration), cut(other, batch, configuration)
    return _part(_same_requests(mine, made), mine, made)


def _part(matrix: npt.NDArray[np.bool_], mine: Grid, made: Grid) -> Part | None:
    """None where a tile needs all, or nothing: whole calls are then waited for."""
    if matrix.all() or not matrix.any(axis=1).all():
        return None
    return Part(matrix, _same_requests(mine, made), len(mine.requests) - 1)


def _same_requests(mine: Grid, made: Grid) -> npt.NDArray[np.bool_]:
    """(tiles, made): whether two boxes have a request in common."""
    boxes = _boxes(mine)
    meet = _overlaps(boxes[:, 0], boxes[:, 1], made.requests)
    return np.repeat(meet, len(made) // (len(made.requests) - 1), axis=1)


def _meeting(windows: list[Window], made: Grid) -> npt.NDArray[np.bool_]:
    """(tiles, made): whether any of a tile's windows shares an element with each box of ``made``."""
    parts = len(made.inner) - 1
    found = np.zeros((len(windows[0]), len(made)), np.bool_)
    for bounds in windows:
        requests, rows, columns = (
            _overlaps(bounds[:, 2 * axis], bounds[:, 2 * axis + 1], edges)
            for axis, edges in enumerate((made.requests, made.rows, made.columns))
        )
        meet = requests[:, :, None, None, None] & rows[:, None, :, None, None] & columns[:, None, None, None, :]
        found |= np.broadcast_to(meet, (*meet.shape[:3], parts, meet.shape[4])).reshape(found.shape)
    return found


def _overlaps(start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64], edges: Edges) -> npt.NDArray[np.bool_]:
    """(tiles, runs): whether [start, stop) shares anything with each run of ``edges``."""
    at = np.array(edges)
    overlap: npt.NDArray[np.bool_] = (at[:-1] < stop[:, None]) & (start[:, None] < at[1:])
    return overlap
