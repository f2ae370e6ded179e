"""What each tile really reads and writes, element by element, told from the operators' definitions alone.

Nothing here knows how ``lower`` finds a dependency. Memory is arrays of bit sets: for every element, which tiles wrote
it and which read it so far. A tile that reads an element must come after its writers; one that writes an element must
come after its writers and its readers. Tiles of one call run in any order, so they may not touch each other's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.events import EventGraph
from workbench.program import Call
from workbench.shapes import Argmax, Attention, Conv, Depthwise, Experts, Gather, Matmul, Reduce, Scan, Shape
from workbench.tiles import Box, TileGraph

Window = tuple[int | slice | list[int], ...]


class Access(NamedTuple):
    """Elements of a tensor: its name, its shape, and which of them."""

    tensor: str
    shape: tuple[int, ...]
    window: Window


def box_slices(box: Box) -> tuple[slice, slice, slice]:
    return slice(*box[0:2]), slice(*box[2:4]), slice(*box[4:6])


def conv_inputs(shape: Conv, start: int, stop: int) -> list[int]:
    """Input samples that touch the output samples [start, stop), from the definition of either convolution."""
    found: set[int] = set()
    for i in range(shape.rows):
        if shape.stride > 1:  # transposed: input i adds kernel[k] to output i * stride + k
            outputs = {i * shape.stride + k for k in range(shape.taps * shape.stride)}
        else:  # causal: output t takes inputs t - k * dilation
            outputs = {i + k * shape.dilation for k in range(shape.kernel)}
        if outputs & set(range(start, stop)):
            found.add(i)
    return sorted(found)


def width_of(shape: Shape) -> int:
    """Columns of a shape's output."""
    match shape:
        case Attention() | Scan():
            return shape.heads * shape.head_dim
        case Gather() | Reduce():
            return shape.width
        case Matmul():
            return shape.outer
        case Depthwise():
            return shape.channels
        case Experts():
            return shape.columns
        case Conv():
            return shape.channels_out
        case Argmax():
            return 1


class Memory:
    """Who needs whom: accesses of each tile of demo_tts and of programs built from the same operators.

    ``codes`` is (request, frame, codebook) for demo_tts; a cache is a tensor a layer, (2, request, position, column).
    """

    def __init__(self, batch: int, heads: int = 4, kv_heads: int = 2, positions: int = 64) -> None:
        self.batch, self.heads, self.kv_heads, self.positions = batch, heads, kv_heads, positions
        self.writers: dict[str, npt.NDArray[Any]] = {}
        self.readers: dict[str, npt.NDArray[Any]] = {}

    # -- what a tile touches -------------------------------------------------------------------------------------

    def reads(self, call: Call, box: Box) -> Iterator[Access]:
        op, shape = call.operator, call.operator.shape
        requests, rows, columns = box_slices(box)
        if isinstance(shape, Matmul):  # its own rows, the columns of its part of the sum; of a residual its own box
            inner = slice(*box[6:8])
            yield Access(op.reads[0], (self.batch, shape.rows, shape.inner), (requests, rows, inner))
            if shape.residual:
                yield Access(op.reads[1], (self.batch, shape.rows, shape.outer), (requests, rows, columns))
        elif isinstance(shape, Attention):
            yield from self._attention_reads(call, shape, box)
        elif isinstance(shape, Conv):
            inputs = conv_inputs(shape, *box[2:4])
            yield Access(op.reads[0], (self.batch, shape.rows, shape.channels_in), (requests, inputs, slice(None)))
            if shape.residual:
                outputs = (self.batch, shape.rows * shape.stride, shape.channels_out)
                yield Access(op.reads[1], outputs, (requests, rows, columns))
        elif isinstance(shape, Depthwise):
            mine = slice(shape.offset + box.column_start, shape.offset + box.column_stop)
            window = slice(max(0, box.row_start - shape.kernel + 1), box.row_stop)
            yield Access(op.reads[0], (self.batch, shape.rows, shape.width or shape.channels), (requests, window, mine))
            if shape.state:
                yield self._left_behind(op.reads[1], shape.kernel - 1, shape.channels, requests, columns)
        elif isinstance(shape, Scan):
            yield from self._scan_reads(call, shape, box)
        elif isinstance(shape, Experts):  # who is chosen is known at run time: any column may be needed
            width = shape.chosen * shape.inner + shape.shared if shape.down else shape.inner
            yield Access(op.reads[0], (self.batch, shape.rows, width), (requests, rows, slice(None)))
            if not shape.down:
                yield Access(op.reads[1], (self.batch, shape.rows, shape.experts), (requests, rows, slice(None)))
            if shape.residual:
                yield Access(op.reads[-1], (self.batch, shape.rows, shape.columns), (requests, rows, columns))
        elif isinstance(shape, Reduce):
            partial = op.reads[0]
            yield Access(partial, self.writers[partial].shape, (requests, rows, columns, slice(None)))
        elif isinstance(shape, Argmax):
            yield Access(op.reads[0], (self.batch, shape.rows, shape.width), (requests, slice(None), slice(None)))
        else:
            yield from self._gather_reads(call, shape, requests)

    def writes(self, call: Call, box: Box) -> Iterator[Access]:
        op, shape = call.operator, call.operator.shape
        requests, rows, columns = box_slices(box)
        if op.writes[0].endswith("+parts"):  # a part of a sum, for each of its elements
            pieces = shape.inner if isinstance(shape, Matmul) else 16
            size = (self.batch, shape.rows, width_of(shape), pieces)
            yield Access(op.writes[0], size, (requests, rows, columns, slice(*box[6:8])))
        elif isinstance(shape, Matmul | Reduce) and len(op.writes) == 2:  # columns of queries, then keys, then values
            query, cache = op.writes
            width = self.kv_width(call)
            queries = width_of(shape) - 2 * width
            new = slice(call.position + box.row_start, call.position + box.row_stop)
            for column in range(box.column_start, box.column_stop):
                if column < queries:
                    yield Access(query, (self.batch, shape.rows, queries), (requests, rows, column))
                else:
                    half, place = divmod(column - queries, width)
                    yield Access(self.cache_name(call, cache), self.cache_shape(width), (half, requests, new, place))
        elif isinstance(shape, Argmax):
            yield self._code(call, requests)
        else:
            height = shape.rows * (shape.stride if isinstance(shape, Conv) else 1)
            yield Access(op.writes[0], (self.batch, height, width_of(shape)), (requests, rows, columns))
            if isinstance(shape, Depthwise) and shape.state:
                yield self._left_behind(op.writes[1], shape.kernel - 1, shape.channels, requests, columns)
            elif isinstance(shape, Scan):
                yield self._left_behind(op.writes[1], shape.state, width_of(shape), requests, columns)

    def kv_width(self, call: Call) -> int:
        """Keys' columns of a QKV product."""
        return width_of(call.operator.shape) * self.kv_heads // (self.heads + 2 * self.kv_heads)

    def cache_name(self, call: Call, name: str) -> str:
        layer = [str(i) for loop, i in call.index.items() if loop.endswith("layers")]
        return "/".join([name, *layer])

    def cache_shape(self, width: int) -> tuple[int, ...]:
        return (2, self.batch, self.positions, width)

    def _attention_reads(self, call: Call, shape: Attention, box: Box) -> Iterator[Access]:
        query, cache = call.operator.reads
        requests, rows, columns = box_slices(box)
        yield Access(query, (self.batch, shape.rows, shape.heads * shape.head_dim), (requests, rows, columns))
        last = call.position + box.row_stop  # causal: nothing after its own last row
        first = call.position + box.row_start - shape.window + 1 if shape.window else 0
        seen = slice(max(0, first), last)
        heads = {c // shape.head_dim for c in range(box.column_start, box.column_stop)}
        for kv_head in {head * shape.kv_heads // shape.heads for head in heads}:
            mine = slice(kv_head * shape.head_dim, (kv_head + 1) * shape.head_dim)
            width = self.cache_shape(shape.kv_heads * shape.head_dim)
            yield Access(self.cache_name(call, cache), width, (slice(None), requests, seen, mine))

    def _left_behind(self, name: str, depth: int, width: int, requests: slice, columns: slice) -> Access:
        """What a call leaves for the next of its kind: each column's own."""
        return Access(name, (self.batch, depth, width), (requests, slice(None), columns))

    def _scan_reads(self, call: Call, shape: Scan, box: Box) -> Iterator[Access]:
        mixed, projection, state = call.operator.reads
        requests, _, columns = box_slices(box)
        so_far = slice(0, box.row_stop)  # an output depends on all rows before it
        inputs, keys = shape.heads * shape.head_dim, shape.groups * shape.state
        for head in {column // shape.head_dim for column in range(box.column_start, box.column_stop)}:
            group = head * shape.groups // shape.heads
            for first in (inputs + group * shape.state, inputs + keys + group * shape.state):
                among = slice(first, first + shape.state)
                yield Access(mixed, (self.batch, shape.rows, shape.channels), (requests, so_far, among))
            step = shape.projected - shape.heads + head
            yield Access(projection, (self.batch, shape.rows, shape.projected), (requests, so_far, step))
        yield Access(mixed, (self.batch, shape.rows, shape.channels), (requests, so_far, columns))
        yield Access(projection, (self.batch, shape.rows, shape.projected), (requests, so_far, columns))  # its gate
        yield Access(projection, (self.batch, shape.rows, shape.projected), (requests, so_far, columns))  # the gate
        yield self._left_behind(state, shape.state, inputs, requests, columns)

    def _gather_reads(self, call: Call, shape: Gather, requests: slice) -> Iterator[Access]:
        name, index = call.operator.name, call.index
        codes = (self.batch, self.positions, 8)
        if name == "codec.embed":
            yield Access("codes", codes, (requests, slice(1, 1 + shape.rows), slice(0, shape.tables)))
        elif name == "talker.embed":
            yield Access("codes", codes, (requests, index["frames"], slice(0, shape.tables)))
            yield Access("prefill.x", (self.batch, 8, shape.width), (requests, 7, slice(None)))
        elif name == "predictor.embed":
            yield Access("codes", codes, (requests, index["frames"] + 1, index["predictor.steps"]))
            yield Access("talker.x", (self.batch, 1, shape.width), (requests, 0, slice(None)))
        elif call.operator.reads[0] == "codes":
            yield Access("codes", codes, (requests, slice(None), slice(None)))
            if shape.extra:
                yield Access(call.operator.reads[1], (self.batch, shape.rows, shape.width), (requests, slice(None)))

    def _code(self, call: Call, requests: slice) -> Access:
        frame = call.index.get("frames", 0) + 1
        column = call.index["predictor.steps"] + 1 if "predictor.steps" in call.index else 0
        return Access(call.operator.writes[0], (self.batch, self.positions, 8), (requests, frame, column))

    # -- who must come before ------------------------------------------------------------------------------------

    def _masks(self, table: dict[str, npt.NDArray[Any]], access: Access) -> npt.NDArray[Any]:
        if access.tensor not in table:
            table[access.tensor] = np.zeros(access.shape, object)
        assert table[access.tensor].shape == access.shape, f"{access.tensor} has two shapes"
        return table[access.tensor]

    def required(self, tiles: TileGraph) -> list[int]:
        """For each tile the set (as bits) of tiles that it must come after; asserts that no call races itself."""
        need = [0] * len(tiles)
        for number, call in enumerate(tiles.calls):
            mine = tiles.of_call(number)
            reads = [(t, list(self.reads(call, tiles.boxes[t]))) for t in mine]
            writes = [(t, list(self.writes(call, tiles.boxes[t]))) for t in mine]
            for t, accesses in reads:
                for access in accesses:
                    need[t] |= _union(self._masks(self.writers, access)[access.window])
            for t, accesses in writes:
                for access in accesses:
                    need[t] |= _union(self._masks(self.writers, access)[access.window])
                    need[t] |= _union(self._masks(self.readers, access)[access.window])
            for table, touched in ((self.readers, reads), (self.writers, writes)):
                for t, accesses in touched:
                    for access in accesses:
                        self._masks(table, access)[access.window] |= 1 << t
            own = sum(1 << t for t in mine)
            for t, accesses in writes:
                for access in accesses:
                    touching = _union(self._masks(self.writers, access)[access.window])
                    touching |= _union(self._masks(self.readers, access)[access.window])
                    others = touching & own & ~(1 << t)
                    if isinstance(call.operator.shape, Matmul) and call.operator.shape.residual:
                        others &= ~self._adds_with(tiles, t)  # parts of a sum are added one by one
                    assert not others, f"tiles {_bits(others)} and {t} of one call of {call.operator.name} race"
        return need

    def _adds_with(self, tiles: TileGraph, tile: int) -> int:
        """Tiles of the same call that add another part of the sum to the same piece of the output."""
        mine = tiles.boxes[tile]
        own = tiles.of_call(int(tiles.call[tile]))
        return sum(1 << t for t in own if tiles.boxes[t][:6] == mine[:6] and tiles.boxes[t][6:] != mine[6:])


def _union(masks: Any) -> int:
    return int(np.bitwise_or.reduce(np.asarray(masks, object), axis=None)) if np.size(masks) else 0


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def ancestors(tiles: TileGraph, events: EventGraph) -> list[int]:
    """For each tile the set (as bits) of tiles that end before it may start, by events alone."""
    signallers: dict[int, list[int]] = {}
    for tile, event in enumerate(events.signal):
        signallers.setdefault(int(event), []).append(tile)
    before: list[int] = []
    fired: dict[int, int] = {}
    for tile in range(len(tiles)):
        mask = 0
        for event in events.waits(tile):
            if event not in fired:
                fired[event] = 0
                for source in signallers[event]:
                    fired[event] |= before[source] | 1 << source
            mask |= fired[event]
        before.append(mask)
    return before


def missing(tiles: TileGraph, events: EventGraph, memory: Memory) -> list[str]:
    """Every tile that may start before one it needs, in words; empty if the event graph is right."""
    found = []
    for tile, (need, have) in enumerate(zip(memory.required(tiles), ancestors(tiles, events), strict=True)):
        if late := need & ~have:
            first = _bits(late)[0]
            names = [tiles.calls[int(tiles.call[t])].operator.name for t in (tile, first)]
            found.append(f"tile {tile} of {names[0]} may start before tile {first} of {names[1]} has ended")
    return found
