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
    output_size,
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
    return np.array(grid.boxes(), np.int64)


class Part:
    """Which tiles of a source each tile of a reader needs: ``matrix`` (reader's tiles, source's tiles)."""

    def __init__(self, matrix: npt.NDArray[np.bool_]) -> None:
        self.matrix = matrix
        self.united = as_bits(matrix.any(axis=0))


def as_bits(mask: npt.NDArray[np.bool_]) -> int:
    """A mask as the bits of a number, entry 0 the lowest."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@lru_cache(KEPT)
def part(shape: Shape, rank: int, producer: Shape, batch: int, configuration: Configuration) -> Part | None:
    """What each tile of ``shape`` needs of ``producer``, which wrote the tensor that it reads; None: all of it.

    ``rank`` is the tensor's among the reads.
    """
    made, boxes = cut(producer, batch, configuration), _boxes(cut(shape, batch, configuration))
    windows = FAMILIES[type(shape)].needs(shape, boxes, rank, producer)
    return None if windows is None else _part(_meeting(windows, made))


@lru_cache(KEPT)
def part_read(shape: Shape, rank: int, producer: Shape, batch: int, configuration: Configuration) -> Part | None:
    """The reverse: which tiles of ``shape`` read what each tile of ``producer`` is about to write again."""
    found = part(shape, rank, producer, batch, configuration)
    return None if found is None else _part(found.matrix.T)


@lru_cache(KEPT)
def part_rewritten(shape: Shape, before: Shape, batch: int, configuration: Configuration) -> Part | None:
    """Which tiles of ``before`` wrote what each tile of ``shape`` writes again, if both write one tensor whole."""
    if output_size(shape) != output_size(before):
        return None
    return _part(_meeting([_boxes(cut(shape, batch, configuration))[:, :6]], cut(before, batch, configuration)))


def _part(matrix: npt.NDArray[np.bool_]) -> Part | None:
    """None where a tile needs all, or nothing: whole calls are then waited for."""
    whole = bool(matrix.all()) or not matrix.any(axis=1).all()
    return None if whole else Part(np.ascontiguousarray(matrix))


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
