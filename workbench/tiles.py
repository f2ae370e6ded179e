"""The tile graph's nodes: which piece of which operator call each tile is, and in which worker's queue it waits.

A tile is a box of its operator's output: requests × rows × columns, and the part of a reduction that it adds up; bounds
are half-open as in ``range``. Rows are tokens, or samples of the output for convolutions; columns are features or
channels; attention's columns are heads × head width. Tile ids follow program order, so a worker's in-order queue is its
tiles by id.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import GraphError
from workbench.program import Call


class Box(NamedTuple):
    """A piece of an operator's output; bounds are half-open.

    ``inner`` is the piece of the reduction behind it: of a product's inner dimension, or of attention's partitions of
    the cache. An operator that is not split there has one piece, which is all of it.
    """

    request_start: int
    request_stop: int
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int
    inner_start: int = 0
    inner_stop: int = 1

    @property
    def extent(self) -> tuple[int, ...]:
        """Numbers of requests, rows, columns and inner pieces."""
        return tuple(stop - start for start, stop in zip(self[::2], self[1::2], strict=True))

    def meets(self, other: Box) -> bool:
        """Whether the two boxes share an element of the output."""
        return all(self[axis] < other[axis + 1] and other[axis] < self[axis + 1] for axis in (0, 2, 4))


Edges = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """An operator's cut: every product of runs along its axes, given by their edges. Columns run fastest, then inner
    pieces, rows, requests.
    """  # fmt: skip

    requests: Edges
    rows: Edges
    columns: Edges
    inner: Edges = (0, 1)

    def __post_init__(self) -> None:
        for axis, edges in zip(("requests", "rows", "columns", "inner"), self.axes, strict=True):
            if len(edges) < 2 or edges[0] != 0 or any(a >= b for a, b in pairwise(edges)):
                raise GraphError(f"edges of {axis} are {edges}; they must rise from 0")

    @property
    def axes(self) -> tuple[Edges, Edges, Edges, Edges]:
        """Edges of requests, rows, columns and inner pieces."""
        return self.requests, self.rows, self.columns, self.inner

    def __len__(self) -> int:
        return (len(self.requests) - 1) * (len(self.rows) - 1) * (len(self.columns) - 1) * (len(self.inner) - 1)

    def array(self) -> npt.NDArray[np.int64]:
        """(tiles, 8): the boxes in tile order, fields as in Box."""
        edges = [np.array(axis) for axis in (self.requests, self.rows, self.inner, self.columns)]
        starts = np.meshgrid(*(axis[:-1] for axis in edges), indexing="ij")
        stops = np.meshgrid(*(axis[1:] for axis in edges), indexing="ij")
        fields = [bound[axis].ravel() for axis in (0, 1, 3, 2) for bound in (starts, stops)]
        return np.stack(fields, axis=1)

    def boxes(self) -> list[Box]:
        """The boxes in tile order."""
        return [Box(*fields) for fields in self.array().tolist()]

    def shares(self, axes: Collection[str] = ("requests", "rows", "inner", "columns")) -> npt.NDArray[np.float64]:
        """(tiles,) each tile's part of the volume that these axes span; over all axes they sum to 1."""
        volume = np.ones(1)
        for axis in ("requests", "rows", "inner", "columns"):
            edges: Edges = getattr(self, axis)
            parts = np.diff(edges) / edges[-1] if axis in axes else np.ones(len(edges) - 1)
            volume = np.multiply.outer(volume, parts).ravel()
        return volume


@dataclass(frozen=True, eq=False)
class TileGraph:
    """Tiles of a sequence of calls, each cut as its entry of ``grids`` says; ``lane`` (T,) is each tile's worker."""

    calls: tuple[Call, ...]
    grids: tuple[Grid, ...]
    lane: npt.NDArray[np.uint32]
    lanes: int

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def sizes(self) -> list[int]:
        """(calls,): each call's number of tiles; cuts recur, so each is counted once."""
        distinct = {id(grid): len(grid) for grid in {id(grid): grid for grid in self.grids}.values()}
        return [distinct[id(grid)] for grid in self.grids]

    @cached_property
    def start(self) -> npt.NDArray[np.uint32]:
        """(calls + 1,): the tiles of call c are [start[c], start[c + 1])."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.uint32)

    @cached_property
    def call(self) -> npt.NDArray[np.uint32]:
        """(T,): the call that each tile is of, an index into ``calls``."""
        return np.repeat(np.arange(len(self.calls), dtype=np.uint32), np.diff(self.start))

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """(T,): the piece that each tile is."""
        return tuple(box for grid in self.grids for box in grid.boxes())

    def of_call(self, index: int) -> range:
        """Ids of the tiles of one call."""
        return range(int(self.start[index]), int(self.start[index + 1]))


def check_tiles(tiles: TileGraph) -> None:
    """Raise GraphError unless every call has its cut, and every tile a lane that exists."""
    if len(tiles.calls) != len(tiles.grids) or tiles.start[-1] != len(tiles.lane):
        raise GraphError(
            f"{len(tiles.calls)} calls, {len(tiles.grids)} cuts of {tiles.start[-1]} tiles, {len(tiles.lane)} lanes: "
            "lengths differ"
        )
    if (beyond := tiles.lane >= tiles.lanes).any():
        tile = int(beyond.argmax())
        raise GraphError(f"tile {tile} waits in lane {tiles.lane[tile]}; there are {tiles.lanes}")
