"""Lowering: calls to tiles, data flow to events. Nothing here knows a cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from workbench.compose import Configuration
from workbench.events import EventGraph, check_events
from workbench.lower import attention, conv, depthwise, experts, matmul, scan
from workbench.program import Call, Item, Operator, calls
from workbench.shapes import Argmax, Attention, Conv, Depthwise, Experts, Gather, Matmul, Scan, Shape
from workbench.tiles import Box, TileGraph, check_tiles


class Family(NamedTuple):
    """How one operator family is tiled: boxes of its output, and the boxes of a producer's that one tile needs.

    ``needs`` is given the rank of the tensor among the operator's reads and answers None for all of the producer.
    """

    boxes: Callable[[Shape, int, int], list[Box]]
    needs: Callable[[Shape, Box, int, Shape], list[Box] | None]


FAMILIES: dict[type, Family] = {
    Matmul: Family(matmul.matmul_boxes, matmul.needs_all),
    Gather: Family(matmul.request_boxes, matmul.needs_all),
    Argmax: Family(matmul.request_boxes, matmul.needs_all),
    Attention: Family(attention.boxes, attention.needs),
    Conv: Family(conv.boxes, conv.needs),
    Depthwise: Family(depthwise.boxes, depthwise.needs),
    Scan: Family(scan.boxes, scan.needs),
    Experts: Family(experts.boxes, experts.needs),
}


@dataclass(frozen=True, slots=True)
class Lowered:
    """Tile and event graph of one level of program text. ``item_stop[i]`` is the number of calls up to item i's end."""

    tiles: TileGraph
    events: EventGraph
    item_stop: tuple[int, ...]


@cache
def boxes_of(shape: Shape, batch: int, count: int) -> tuple[Box, ...]:
    """The boxes that a shape is cut into, at most ``count`` of them."""
    return tuple(FAMILIES[type(shape)].boxes(shape, batch, count))


@cache
def _needed(shape: Shape, batch: int, count: int, rank: int, producer: Shape) -> Part:
    """For each tile of ``shape``, the producer's tiles that it needs by number; None if every tile needs all."""
    made = np.array(boxes_of(producer, batch, count))
    needs = FAMILIES[type(shape)].needs
    wanted: list[tuple[int, ...]] = []
    for box in boxes_of(shape, batch, count):
        parts = needs(shape, box, rank, producer)
        if parts is None:
            return None
        windows = np.array(parts)[:, None]
        meet = (made[:, ::2] < windows[..., 1::2]) & (windows[..., ::2] < made[:, 1::2])  # see Box.meets
        wanted.append(tuple(np.flatnonzero(meet.all(axis=-1).any(axis=0)).tolist()))
    if any(not tiles for tiles in wanted) or all(len(tiles) == len(made) for tiles in wanted):
        return None
    return tuple(wanted)


Part = tuple[tuple[int, ...], ...] | None  # for each tile of a reader, tiles of a producer; None: all of them
Need = tuple[int, Part]  # the producer call, and what is needed of it


class _Past:
    """What has ended when, for calls added in order; ``sizes`` are their numbers of tiles.

    ``before[c]`` is the set of calls (as bits) that have wholly ended before any tile of c may start; what it holds
    needs no event. ``after[c]`` is the set that has ended once all tiles of c have; ``partly[c]`` says of other calls
    which of their tiles have by then.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.before: list[int] = []
        self.after: list[int] = []
        self.partly: list[dict[int, set[int]]] = []

    def add(self, found: Mapping[int, list[Part]]) -> list[Need]:
        """What the next call waits for, of the ``found`` calls that it must come after."""
        done, some, needs = 0, dict[int, set[int]](), []
        for source in sorted(found, reverse=True):
            if done >> source & 1:
                continue
            parts = [part for part in found[source] if part is not None]
            if len(parts) < len(found[source]):
                merged = None
                done |= self.after[source]
                _unite(some, self.partly[source])
            else:
                merged = tuple(tuple(sorted(set().union(*tile))) for tile in zip(*parts, strict=True))
                done |= self.before[source]
                _unite(some, {source: set().union(*merged)})
            needs.append((source, merged))
        self.before.append(done)
        self._end(done | 1 << len(self.after), some)
        return needs

    def _end(self, ended: int, some: dict[int, set[int]]) -> None:
        """Calls of which all tiles are in ``some`` have ended, with all that has ended after them."""
        left: dict[int, set[int]] = {}
        while some:
            source = max(some)
            tiles = some.pop(source)
            if ended >> source & 1:
                continue
            if len(tiles) == self.sizes[source]:
                ended |= self.after[source]
                _unite(some, self.partly[source])
            else:
                left[source] = tiles
        self.after.append(ended)
        self.partly.append(left)


def _unite(into: dict[int, set[int]], more: Mapping[int, set[int]]) -> None:
    for source, tiles in more.items():
        into[source] = into.get(source, set()) | tiles


def _dependencies(sequence: tuple[Call, ...], batch: int, count: int) -> list[list[Need]]:
    """What each call waits for: last writers of what it reads, and for what it writes the last writer and all readers.

    Writers of one tensor are thereby ordered, so that the last writer stands for all.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    past = _Past([len(boxes_of(call.operator.shape, batch, count)) for call in sequence])
    result: list[list[Need]] = []
    for number, call in enumerate(sequence):
        op, found = call.operator, dict[int, list[Part]]()
        for rank, tensor in enumerate(op.reads):
            if tensor in writer:
                source = writer[tensor]
                part = _needed(op.shape, batch, count, rank, sequence[source].operator.shape)
                found.setdefault(source, []).append(part)
        for tensor in op.writes:
            for other in [*readers.get(tensor, []), *([writer[tensor]] if tensor in writer else [])]:
                found.setdefault(other, []).append(None)
        result.append(past.add(found))
        for tensor in op.reads:
            readers.setdefault(tensor, []).append(number)
        for tensor in op.writes:
            writer[tensor] = number
            readers[tensor] = []
    return result


def lower(level: tuple[Item, ...], index: Mapping[str, int], batch: int, configuration: Configuration) -> Lowered:
    """Tiles and events of a level's items run in one launch, loops unrolled.

    ``index`` holds the loops around the level. Tile i of an operator waits in lane i mod workers.
    """
    sequence: list[Call] = []
    item_stop: list[int] = []
    for item in level:
        sequence.extend(calls((item,), index))
        item_stop.append(len(sequence))
    return lower_calls(tuple(sequence), tuple(item_stop), batch, configuration)


def lower_calls(
    sequence: tuple[Call, ...], item_stop: tuple[int, ...], batch: int, configuration: Configuration
) -> Lowered:
    """Tiles and events of a sequence of calls."""
    count = configuration.workers * configuration.tiles_per_worker
    pieces = [boxes_of(call.operator.shape, batch, count) for call in sequence]
    tiles = TileGraph(
        calls=sequence,
        call=np.repeat(np.arange(len(sequence), dtype=np.uint32), [len(p) for p in pieces]),
        lane=np.concatenate([np.arange(len(p), dtype=np.uint32) % configuration.workers for p in pieces]),
        boxes=tuple(box for piece in pieces for box in piece),
        lanes=configuration.workers,
    )
    events = _events(_dependencies(sequence, batch, count), [len(p) for p in pieces])
    check_tiles(tiles)
    check_events(tiles, events)
    return Lowered(tiles, events, item_stop)


def _events(needs: list[list[Need]], sizes: list[int]) -> EventGraph:
    parted = {source for need in needs for source, parts in need if parts is not None}
    event_of_call: list[int] = []
    thresholds: list[int] = []
    signal: list[int] = []
    for number, size in enumerate(sizes):
        event_of_call.append(len(thresholds))
        if number in parted:
            signal.extend(range(len(thresholds), len(thresholds) + size))
            thresholds.extend([1] * size)
        else:
            signal.extend([len(thresholds)] * size)
            thresholds.append(size)
    wait_ptr, wait_event = [0], []
    for number, size in enumerate(sizes):
        for tile in range(size):
            for source, parts in needs[number]:
                base = event_of_call[source]
                if source not in parted:
                    wait_event.append(base)
                else:
                    wanted = range(sizes[source]) if parts is None else parts[tile]
                    wait_event.extend(base + i for i in wanted)
            wait_ptr.append(len(wait_event))
    return EventGraph(
        signal=np.array(signal, np.uint32),
        threshold=np.array(thresholds, np.uint32),
        wait_ptr=np.array(wait_ptr, np.uint32),
        wait_event=np.array(wait_event, np.uint32),
    )


def operator_tiles(operator: Operator, batch: int, configuration: Configuration) -> tuple[Box, ...]:
    """The boxes of one operator alone under a configuration: what a standalone benchmark runs."""
    return boxes_of(operator.shape, batch, configuration.workers * configuration.tiles_per_worker)
