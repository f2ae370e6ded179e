"""Lowering: calls to tiles, data flow to events. Nothing here knows a cost.

Loops are unrolled, but everything that depends on shapes alone (cuts, which tiles meet which, groups of tiles that
share an event) is worked out once for all calls alike, and a call costs a few array copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from workbench.compose import Configuration
from workbench.events import EventGraph, check_events
from workbench.lower import attention, matmul
from workbench.lower.dependencies import Need, dependencies
from workbench.lower.families import KEPT, Part, cut
from workbench.program import Call, Item, Operator, calls
from workbench.shapes import Attention, Matmul, Reduce
from workbench.tiles import Grid, TileGraph, check_tiles

Indices = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Lowered:
    """Tile and event graph of one level of program text. ``item_stop[i]`` is the number of calls up to item i's end.

    Calls are those that run: an operator that is split along its reduction is followed by the sum of its parts.
    """

    tiles: TileGraph
    events: EventGraph
    item_stop: tuple[int, ...]


@lru_cache(KEPT)
def steps(operator: Operator, batch: int, configuration: Configuration) -> tuple[Operator, ...]:
    """The operator as it runs: itself, or its parts and then their sum, ``name+reduce``."""
    shape = operator.shape
    if isinstance(shape, Attention):
        parts = attention.parts(shape, batch, configuration)
        width = shape.heads * shape.head_dim
        total = Reduce(rows=shape.rows, width=width, parts=parts, statistics=2 * shape.heads, unit=shape.head_dim)
    elif isinstance(shape, Matmul) and not shape.residual:
        parts = matmul.parts(shape, configuration)
        copies = 2 if shape.gated else 1
        total = Reduce(rows=shape.rows, width=shape.outer, parts=parts, copies=copies, unit=max(1, shape.heads))
    else:
        return (operator,)
    if parts == 1:
        return (operator,)
    partial = f"{operator.name}+parts"
    return (
        replace(operator, writes=(partial,)),
        replace(operator, name=f"{operator.name}+reduce", shape=total, reads=(partial,)),
    )


def call_steps(call: Call, batch: int, configuration: Configuration) -> tuple[Call, ...]:
    """``steps`` of a call."""
    return tuple(Call(operator, call.index) for operator in steps(call.operator, batch, configuration))


def level_calls(level: tuple[Item, ...], index: Mapping[str, int]) -> tuple[tuple[Call, ...], tuple[int, ...]]:
    """The calls of a level's items, loops unrolled, and their number up to each item's end."""
    sequence: list[Call] = []
    item_stop: list[int] = []
    for item in level:
        sequence.extend(calls((item,), index))
        item_stop.append(len(sequence))
    return tuple(sequence), tuple(item_stop)


def lower(level: tuple[Item, ...], index: Mapping[str, int], batch: int, configuration: Configuration) -> Lowered:
    """Tiles and events of a level's items run in one launch, loops unrolled.

    ``index`` holds the loops around the level. Tile i of an operator waits in lane i mod workers.
    """
    return lower_calls(*level_calls(level, index), batch, configuration)


def lower_calls(
    sequence: tuple[Call, ...], item_stop: tuple[int, ...], batch: int, configuration: Configuration
) -> Lowered:
    """Tiles and events of a sequence of calls."""
    distinct = {id(call.operator): call.operator for call in sequence}
    split = {key: steps(operator, batch, configuration) for key, operator in distinct.items()}
    if any(len(parts) > 1 for parts in split.values()):
        ends = np.concatenate([[0], np.cumsum([len(split[id(call.operator)]) for call in sequence])])
        item_stop = tuple(int(ends[stop]) for stop in item_stop)
        sequence = tuple(Call(step, call.index) for call in sequence for step in split[id(call.operator)])
    cuts = {id(call.operator): call.operator for call in sequence}
    grid_of = {key: cut(operator.shape, batch, configuration) for key, operator in cuts.items()}
    grids = tuple(grid_of[id(call.operator)] for call in sequence)
    lane_of = {key: _lanes(len(grid), configuration.workers) for key, grid in grid_of.items()}
    lanes = np.concatenate([lane_of[id(call.operator)] for call in sequence])
    tiles = TileGraph(sequence, grids, lanes, configuration.workers)
    events = _events(dependencies(sequence, batch, configuration), tiles.sizes)
    check_tiles(tiles)
    check_events(tiles, events)
    return Lowered(tiles, events, item_stop)


@lru_cache(KEPT)
def _lanes(size: int, workers: int) -> Indices:
    return np.arange(size, dtype=np.uint32) % np.uint32(workers)


class _Groups:
    """Tiles of one call that share an event: those that the same tiles of every reader wait for.

    ``of_tile`` (tiles,) is each tile's event among the call's; ``sizes`` (events,) their tiles.
    """

    def __init__(self, size: int, parts: tuple[Part, ...]) -> None:
        if parts:
            needed_by = np.packbits(np.concatenate([part.matrix for part in parts]), axis=0).T  # (tiles, readers / 8)
            seen: dict[bytes, int] = {}
            numbers = [seen.setdefault(readers.tobytes(), len(seen)) for readers in needed_by]
            self.of_tile = np.array(numbers, np.uint32)
        else:
            self.of_tile = np.zeros(size, np.uint32)
        self.sizes = np.bincount(self.of_tile).astype(np.uint32)
        self.first = np.unique(self.of_tile, return_index=True)[1]

    def waits(self, part: Part | None, tiles: int) -> npt.NDArray[np.bool_]:
        """(tiles, events): the events that each tile of a reader waits for."""
        if part is None:
            return np.ones((tiles, len(self.sizes)), np.bool_)
        return part.matrix[:, self.first]


_groups = lru_cache(KEPT)(_Groups)


Waits = tuple[Indices, Indices, Indices]
_NO_WAITS: Waits = (np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.uint32))


@lru_cache(KEPT)
def _waits(tiles: int, needs: tuple[tuple[_Groups, Part | None], ...]) -> Waits:
    """Of a reader's tiles: how many waits each has, and of each wait the need it is of and the event among its call's.

    In the order of the needs, and of events within one.
    """
    if not needs:
        return np.zeros(tiles, np.uint32), *_NO_WAITS[1:]
    blocks = [groups.waits(part, tiles) for groups, part in needs]
    which = np.repeat(np.arange(len(blocks)), [block.shape[1] for block in blocks])
    local = np.concatenate([np.arange(block.shape[1]) for block in blocks])
    reader, column = np.nonzero(np.concatenate(blocks, axis=1))
    counts = np.bincount(reader, minlength=tiles)
    return counts.astype(np.uint32), which[column].astype(np.uint32), local[column].astype(np.uint32)


def _events(needs: list[list[Need]], sizes: list[int]) -> EventGraph:
    parts_of: list[dict[Part, None]] = [{} for _ in sizes]
    for need in needs:
        for source, part in need:
            if part is not None:
                parts_of[source][part] = None
    groups = [_groups(size, tuple(parts)) for size, parts in zip(sizes, parts_of, strict=True)]
    base = np.concatenate([[0], np.cumsum([len(group.sizes) for group in groups])]).astype(np.uint32)
    alike: dict[tuple[object, ...], list[int]] = {}  # calls by what they wait for, wherever it is
    for number, (size, need) in enumerate(zip(sizes, needs, strict=True)):
        alike.setdefault((size, *[(groups[source], part) for source, part in need]), []).append(number)
    shape_of = [_NO_WAITS] * len(sizes)
    for (tiles, *waited), numbers in alike.items():
        found = _waits(tiles, tuple(waited))
        for number in numbers:
            shape_of[number] = found
    wait_ptr = np.zeros(sum(sizes) + 1, np.uint32)
    np.cumsum(np.concatenate([counts for counts, _, _ in shape_of]), out=wait_ptr[1:])
    offset = np.concatenate([[0], np.cumsum([len(which) for _, which, _ in shape_of])])
    wait_event = np.empty(offset[-1], np.uint32)
    for numbers in alike.values():
        _, which, local = shape_of[numbers[0]]
        if len(which):
            bases = base[np.array([[source for source, _ in needs[number]] for number in numbers])]
            wait_event[offset[numbers][:, None] + np.arange(len(which))] = bases[:, which] + local
    return EventGraph(
        signal=np.concatenate([group.of_tile for group in groups]) + np.repeat(base[:-1], sizes),
        threshold=np.concatenate([group.sizes for group in groups]),
        wait_ptr=wait_ptr,
        wait_event=wait_event,
    )


def operator_cut(operator: Operator, batch: int, configuration: Configuration) -> Grid:
    """The cut of one operator alone under a configuration: what a standalone benchmark runs."""
    return cut(operator.shape, batch, configuration)
