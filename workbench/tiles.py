"""The tile graph's nodes: which piece of which operator call each tile is, and in which worker's queue it waits.

A tile is a box of its operator's output: requests × rows × columns, bounds half-open as in ``range``. Rows are tokens,
or samples of the output for convolutions; columns are features or channels; attention's columns are heads × head width.
Tile ids follow program order, so a worker's in-order queue is its tiles by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import GraphError
from workbench.program import Call


class Box(NamedTuple):
    """A piece of an operator's output; bounds are half-open."""

    request_start: int
    request_stop: int
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int

    @property
    def extent(self) -> tuple[int, int, int]:
        """Numbers of requests, rows and columns."""
        return (
            self.request_stop - self.request_start,
            self.row_stop - self.row_start,
            self.column_stop - self.column_start,
        )

    def meets(self, other: Box) -> bool:
        """Whether the two boxes share an element."""
        return all(self[axis] < other[axis + 1] and other[axis] < self[axis + 1] for axis in (0, 2, 4))


@dataclass(frozen=True, slots=True)
class TileGraph:
    """Tiles of a sequence of calls. ``call`` (T,) indexes ``calls`` and never falls; ``lane`` (T,) is the worker."""

    calls: tuple[Call, ...]
    call: npt.NDArray[np.uint32]
    lane: npt.NDArray[np.uint32]
    boxes: tuple[Box, ...]
    lanes: int

    def __len__(self) -> int:
        return len(self.boxes)

    def of_call(self, index: int) -> range:
        """Ids of the tiles of one call."""
        start, stop = np.searchsorted(self.call, [index, index + 1])
        return range(int(start), int(stop))


def check_tiles(tiles: TileGraph) -> None:
    """Raise GraphError unless every call has tiles, boxes are not empty and lanes exist."""
    if len(tiles.call) != len(tiles.boxes) or len(tiles.lane) != len(tiles.boxes):
        raise GraphError(f"{len(tiles.boxes)} boxes, {len(tiles.call)} calls, {len(tiles.lane)} lanes: lengths differ")
    if len(tiles.call) and (np.diff(tiles.call.astype(np.int64)) < 0).any():
        raise GraphError("tiles are not in program order")
    for number, call in enumerate(tiles.calls):
        if not len(tiles.of_call(number)):
            raise GraphError(f"call {number} of {call.operator.name!r} has no tile")
    for tile, (box, lane) in enumerate(zip(tiles.boxes, tiles.lane, strict=True)):
        if min(box.extent) < 1 or min(box[::2]) < 0:
            name = tiles.calls[tiles.call[tile]].operator.name
            raise GraphError(f"tile {tile} of {name!r}: {box} is empty or negative; bounds are half-open")
        if lane >= tiles.lanes:
            raise GraphError(f"tile {tile} waits in lane {lane}; there are {tiles.lanes}")
