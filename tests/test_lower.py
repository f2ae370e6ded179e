"""Lowering: tiles cut every output exactly once, and events order every two tiles that must not overlap."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.happens_before import Memory, ancestors, conv_inputs, missing, width_of

from workbench.compose import Configuration, levels
from workbench.errors import GraphError
from workbench.events import EventGraph, check_events, to_networkx
from workbench.lower import FAMILIES, Lowered, lower
from workbench.lower.families import cut
from workbench.lower.lowering import call_steps, lower_calls, steps
from workbench.models import demo_tts, load_program
from workbench.program import Call, Loop, Node, Operator, Program, items
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
from workbench.tiles import Box, Grid, TileGraph, check_tiles

DEMO = demo_tts.program()
CONFIGURATIONS = [Configuration(1), Configuration(2), Configuration(2, 2), Configuration(3), Configuration(4, 2)]


def boxes_of(shape: Shape, batch: int, count: int) -> list[Box]:
    return cut(shape, batch, Configuration(count)).boxes()


def lowered(program: Program, batch: int, configuration: Configuration) -> Lowered:
    return lower(items(program.first), {}, batch, configuration)


# -- tiles -------------------------------------------------------------------------------------------------------------

gathers = st.builds(
    Gather, rows=st.integers(1, 5), tables=st.integers(1, 3), entries=st.just(9), width=st.integers(1, 40)
)
plain_matmuls = st.builds(
    Matmul, rows=st.integers(1, 9), inner=st.just(8), outer=st.integers(1, 200), gated=st.booleans()
)
headed_matmuls = st.builds(
    lambda rows, heads, width: Matmul(rows=rows, inner=8, outer=heads * width, heads=width),
    st.integers(1, 9), st.integers(1, 12), st.sampled_from([4, 8, 32]),
)  # fmt: skip
attentions = st.builds(
    lambda rows, group, kv_heads, width: Attention(
        rows=rows, heads=group * kv_heads, kv_heads=kv_heads, head_dim=width
    ),
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.sampled_from([4, 8]),
)  # fmt: skip
convs = st.builds(
    Conv,
    rows=st.integers(1, 300),
    channels_in=st.just(4),
    channels_out=st.integers(1, 50),
    kernel=st.integers(1, 7),
    dilation=st.integers(1, 3),
    stride=st.integers(1, 5),
    taps=st.integers(1, 3),
) | st.builds(Conv, rows=st.integers(60, 200), channels_in=st.just(4), channels_out=st.sampled_from([64, 96, 128]))
depthwises = st.builds(Depthwise, rows=st.integers(1, 70), channels=st.integers(1, 200), kernel=st.integers(1, 7))
scans = st.builds(
    lambda rows, group, groups, width: Scan(rows=rows, heads=group * groups, head_dim=width, state=4, groups=groups),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([4, 8]),
)
experts = st.builds(
    Experts, rows=st.integers(1, 3), inner=st.just(8), outer=st.integers(1, 40), experts=st.just(8),
    chosen=st.integers(1, 4), shared=st.integers(0, 40), down=st.booleans(),
)  # fmt: skip
reduces = st.builds(
    Reduce, rows=st.integers(1, 3), width=st.integers(1, 200), parts=st.integers(2, 5), unit=st.sampled_from([1, 8])
)
argmaxes = st.builds(Argmax, width=st.integers(1, 300), rows=st.integers(1, 4))
SHAPES: dict[type, st.SearchStrategy[Shape]] = {
    Gather: gathers,
    Matmul: plain_matmuls | headed_matmuls,
    Attention: attentions,
    Conv: convs,
    Argmax: argmaxes,
    Depthwise: depthwises,
    Scan: scans,
    Experts: experts,
    Reduce: reduces,
}
SHAPED = st.builds(
    Configuration,
    workers=st.integers(1, 8),
    tiles_per_worker=st.integers(1, 3),
    columns=st.sampled_from([0, 4, 16, 48]),
    inner=st.sampled_from([0, 3, 8, 100]),
    rows=st.sampled_from([0, 1, 2, 7, 64]),
    partitions=st.integers(0, 5),
)


def output_of(shape: Shape, batch: int) -> tuple[int, int, int]:
    """Requests, rows and columns of a shape's output."""
    return batch, shape.rows * (shape.stride if isinstance(shape, Conv) else 1), width_of(shape)


def test_every_family_has_a_strategy_here() -> None:
    assert set(SHAPES) == set(FAMILIES)


@pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.__name__)
def test_tiles_cover_every_element_of_an_output_once(family: type) -> None:
    @settings(max_examples=120, deadline=None)
    @given(SHAPES[family], st.integers(1, 9), SHAPED | st.builds(Configuration, st.integers(1, 8)))
    def check(shape: Shape, batch: int, configuration: Configuration) -> None:
        grid = cut(shape, batch, configuration)
        inner = grid.inner[-1]
        assert inner in (1, getattr(shape, "inner", 1), len(grid.inner) - 1)
        covered = np.zeros((*output_of(shape, batch), inner), int)
        boxes = grid.boxes()
        for box in boxes:
            assert min(box.extent) >= 1
            assert all(stop <= size for stop, size in zip(box[1::2], covered.shape, strict=True)), "beyond the output"
            covered[tuple(slice(*box[axis : axis + 2]) for axis in (0, 2, 4, 6))] += 1
        assert (covered == 1).all()
        volume = np.array([np.prod(box.extent) for box in boxes])
        assert grid.shares() == pytest.approx(volume / covered.size)
        assert len(boxes) == len(grid) >= 1
        assert len(boxes) <= configuration.count or configuration.rows or configuration.inner

    check()


@settings(max_examples=60, deadline=None)
@given(headed_matmuls | attentions | scans, st.integers(1, 9), st.integers(1, 8))
def test_heads_are_not_split(shape: Shape, batch: int, count: int) -> None:
    width = shape.heads if isinstance(shape, Matmul) else shape.head_dim  # type: ignore[union-attr]
    assert all(box.column_start % width == box.column_stop % width == 0 for box in boxes_of(shape, batch, count))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(SHAPES)).flatmap(SHAPES.__getitem__), st.integers(1, 9), st.integers(1, 8))
def test_tiles_of_one_operator_are_near_equal(shape: Shape, batch: int, count: int) -> None:
    """No tile has over one unit more than another along any axis; the last unit may be short."""
    extents = np.array([box.extent for box in boxes_of(shape, batch, count)])
    spread = extents.max(axis=0) - extents.min(axis=0)
    rows, columns = 1, 16
    if isinstance(shape, Conv):
        rows = 16 * shape.stride
    elif isinstance(shape, Reduce) and shape.unit > 1:
        columns = shape.unit
    elif isinstance(shape, Attention | Scan):
        columns = shape.head_dim
    elif isinstance(shape, Matmul) and shape.heads:
        columns = shape.heads
    assert (spread <= [1, 2 * rows - 1, 2 * columns - 1, shape.inner if isinstance(shape, Matmul) else 0]).all()


def test_two_boxes_meet_where_they_share_an_element() -> None:
    rng = random.Random(0)

    def some() -> Box:
        edges = [sorted(rng.sample(range(5), 2)) for _ in range(4)]
        return Box(*(edge for pair in edges for edge in pair))

    for _ in range(500):
        a, b = some(), some()
        mark = np.zeros((5, 5, 5), int)
        for box in (a, b):
            mark[tuple(slice(*box[axis : axis + 2]) for axis in (0, 2, 4))] += 1
        assert a.meets(b) == b.meets(a) == bool((mark == 2).any())


# -- the event graph ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_demo_tts_lowers_to_an_acyclic_graph_in_program_order(configuration: Configuration) -> None:
    result = lowered(DEMO, 2, configuration)
    graph = to_networkx(result.tiles, result.events)
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.number_of_nodes() == len(result.tiles) + len(result.events.threshold)
    assert all(graph.out_degree(("tile", t)) == 1 for t in range(len(result.tiles)))
    assert all(
        graph.in_degree(("event", e)) == threshold == graph.nodes["event", e]["threshold"]
        for e, threshold in enumerate(result.events.threshold)
    )
    assert set(result.tiles.lane) == set(range(configuration.workers))
    assert result.item_stop == (1, 21, 145, *range(146, 158))


@pytest.mark.parametrize(("batch", "configuration"), [
    (1, Configuration(1)), (1, Configuration(2)), (1, Configuration(2, 2)), (1, Configuration(4, 2)),
    (2, Configuration(3)), (3, Configuration(2)), (3, Configuration(2, 2)), (5, Configuration(4, 2)),
    (9, Configuration(2)),
], ids=str)  # fmt: skip
def test_tiles_of_demo_tts_wait_for_all_that_they_need(batch: int, configuration: Configuration) -> None:
    result = lowered(DEMO, batch, configuration)
    assert missing(result.tiles, result.events, Memory(batch)) == []


@pytest.mark.parametrize("frames", [1, 3])
def test_longer_and_shorter_chunks_wait_for_all_that_they_need(frames: int) -> None:
    program = demo_tts.program(first_frames=frames, chunk_frames=frames)
    for nodes, frame0 in ((program.first, 0), (program.further, frames)):
        result = lower(items(nodes), {}, 2, Configuration(2, 2))
        assert missing(result.tiles, result.events, Memory(2)) == [], frame0


def typed_program(rng: random.Random) -> tuple[Program, tuple[int, int]]:
    """A random program whose tensors have shapes that fit, and its (heads, kv_heads).

    ``x*`` are rows of features, ``y*`` and ``z*`` time × channels before and after an upsampling; a tensor is often
    overwritten while others still read it, which is what the events must prevent.
    """
    rows, width = rng.choice((1, 1, 3)), 32
    kv_heads, head_dim = rng.choice((1, 2, 3)), 8
    heads = kv_heads * rng.choice((1, 2, 4))
    time, channels, narrow, stride = rng.choice((2, 5, 64, 70)), 8, 6, rng.choice((2, 3))
    groups, cells, window, taps = (
        rng.choice((1, 2, 3)),
        rng.choice((4, 16, 24)),
        rng.choice((0, 0, 2)),
        rng.choice((1, 2, 3)),
    )
    count = iter(range(1000))

    def pick(letter: str, *, but: str = "") -> str:
        return rng.choice([f"{letter}{i}" for i in range(3) if f"{letter}{i}" != but])

    def operator(around: tuple[str, ...]) -> Operator:
        x, z, y = pick("x"), pick("z"), pick("y")
        other, other_y, other_z = pick("x", but=x), pick("y", but=y), pick("z", but=z)
        q, kv = rng.choice(("q0", "q1")), rng.choice(("kv0", "kv1"))
        loop = rng.choice(("", *around))
        attention = Attention(rows=rows, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
        qkv = Matmul(rows=rows, inner=width, outer=(heads + 2 * kv_heads) * head_dim, norm=True, heads=head_dim)
        kernel, dilation = rng.choice((1, 2, 7)), rng.choice((1, 3))
        near = Conv(rows=time, channels_in=channels, channels_out=channels, kernel=kernel, dilation=dilation)
        up = Conv(rows=time, channels_in=channels, channels_out=narrow, stride=stride, taps=taps)
        far = Conv(rows=time * stride, channels_in=narrow, channels_out=narrow, kernel=kernel, dilation=dilation)
        mix = Conv(
            rows=time * stride, channels_in=narrow, channels_out=narrow, residual=True, kernel=kernel, dilation=dilation
        )
        last = Conv(rows=time * stride, channels_in=narrow, channels_out=1, kernel=7)
        broad = Conv(rows=time, channels_in=channels, channels_out=96, kernel=kernel, dilation=dilation)
        back = Conv(rows=time, channels_in=96, channels_out=channels, kernel=3)
        own = Depthwise(rows=time, channels=channels, kernel=3)
        scan = Scan(rows=rows, heads=2 * groups, head_dim=8, state=cells, groups=groups)
        local = Depthwise(
            rows=rows, channels=scan.channels, kernel=4, offset=16 * groups, width=scan.projected, state=True
        )
        upwards = Experts(rows=rows, inner=width, outer=24, experts=16, chosen=2, shared=16)
        downwards = Experts(rows=rows, inner=24, outer=width, experts=16, chosen=2, shared=16, down=True, residual=True)
        choices: list[tuple[Shape, tuple[str, ...], tuple[str, ...]]] = [
            (Matmul(rows=rows, inner=width, outer=width), (x,), (other,)),
            (Matmul(rows=rows, inner=width, outer=width, residual=True), (x, other), (other,)),
            (Matmul(rows=rows, inner=width, outer=96, gated=True), (x,), ("f",)),
            (Matmul(rows=rows, inner=96, outer=width, residual=True), ("f", x), (x,)),
            (qkv, (x,), (q, kv)),
            (attention, (q, kv), ("a",)),
            (Matmul(rows=rows, inner=heads * head_dim, outer=width, residual=True), ("a", x), (x,)),
            (Matmul(rows=rows, inner=width, outer=64), (x,), ("l",)),
            (Argmax(width=64, rows=rows), ("l",), ("codes",)),
            (Gather(rows=rows, tables=1, entries=9, width=width, extra=True), ("codes", x), (other,)),
            (Gather(rows=time, tables=2, entries=9, width=channels), ("codes",), (y,)),
            (near, (y,), (other_y,)), (near, (other_y,), (y,)), (up, (y,), (z,)), (far, (z,), (other_z,)),
            (mix, (z, other_z), (other_z,)), (mix, (z, z), (other_z,)), (last, (z,), ("pcm",)),
            (own, (y,), (other_y,)), (own, (other_y,), (y,)), (broad, (y,), ("b",)), (back, ("b",), (y,)),
            (Matmul(rows=rows, inner=width, outer=scan.projected), (x,), ("p",)),
            (local, ("p", "window"), ("mixed", "window")),
            (scan, ("mixed", "p", "state"), ("s", "state")),
            (Matmul(rows=rows, inner=16 * groups, outer=width, residual=True), ("s", x), (x,)),
            (Matmul(rows=rows, inner=width, outer=16), (x,), ("r",)),
            (upwards, (x, "r"), ("e",)), (downwards, ("e", x), (x,)),
        ]  # fmt: skip
        shape, reads, writes = rng.choice(choices)
        if kind and rng.random() < 0.8:
            fitting = [c for c in choices if isinstance(c[0], kind)]
            shape, reads, writes = rng.choice(fitting)
        position = {"position": rng.randrange(4), "position_loop": loop} if shape in (qkv, attention) else {}
        return Operator(name=f"op{next(count)}", shape=shape, reads=reads, writes=writes, **position)  # type: ignore[arg-type]

    def nodes(around: tuple[str, ...], depth: int) -> tuple[Node, ...]:
        made: list[Node] = [operator(around) for _ in range(rng.randrange(1, 7))]
        if depth < 2 and rng.random() < 0.7:
            name = f"loop{next(count)}"
            made.insert(
                rng.randrange(len(made) + 1), Loop(name, rng.randrange(1, 4), nodes((*around, name), depth + 1))
            )
        return tuple(made)

    kind = rng.choice((None, Conv | Depthwise, Matmul | Attention, Matmul | Scan | Depthwise, Matmul | Experts))
    first = nodes((), 0)
    return Program("typed", first, first), (heads, kv_heads)


@pytest.mark.parametrize("tenth", range(10))
def test_tiles_of_random_programs_wait_for_all_that_they_need(tenth: int) -> None:
    """300 programs, the same ones each time: some broken rules show in one of fifty only."""
    for seed in range(30 * tenth, 30 * tenth + 30):
        rng = random.Random(seed)
        program, (heads, kv_heads) = typed_program(rng)
        level = rng.choice(levels(program))
        index = {loop.name: rng.randrange(loop.count) for loop in level.around}
        batch, configuration = rng.randrange(1, 10), Configuration(rng.randrange(1, 7), rng.randrange(1, 4))
        if seed % 2:
            bounds = (rng.choice((0, 4, 16)), rng.choice((0, 16, 40)), rng.choice((0, 1, 2, 4)), rng.randrange(4))
            configuration = Configuration(configuration.workers, configuration.tiles_per_worker, *bounds)
        result = lower(level.items, index, batch, configuration)
        assert missing(result.tiles, result.events, Memory(batch, heads, kv_heads)) == [], seed
        assert nx.is_directed_acyclic_graph(to_networkx(result.tiles, result.events))


def test_the_oracle_sees_a_dropped_wait() -> None:
    """Drop any one wait that nothing else implies, and the oracle names the tile: it is not blind."""
    result = lowered(demo_tts.program(first_frames=1, chunk_frames=1), 1, Configuration(2))
    events, seen, implied = result.events, 0, 0
    needed = Memory(1).required(result.tiles)
    rng = random.Random(0)
    for at in rng.sample(range(len(events.wait_event)), 25):
        tile = int(np.searchsorted(events.wait_ptr, at, side="right")) - 1
        ptr = events.wait_ptr.copy()
        ptr[tile + 1 :] -= 1
        broken = EventGraph(events.signal, events.threshold, ptr, np.delete(events.wait_event, at))
        before = ancestors(result.tiles, broken)
        implied += before == ancestors(result.tiles, events)
        seen += any(need & ~have for need, have in zip(needed, before, strict=True))
    assert seen >= 20
    assert seen + implied >= 23


@pytest.mark.parametrize("configuration", CONFIGURATIONS[:4], ids=str)
def test_few_waits_are_implied_by_others(configuration: Configuration) -> None:
    """Counted against networkx's transitive reduction: a wait costs the runtime a look at a counter."""
    result = lowered(DEMO, 2, configuration)
    graph = to_networkx(result.tiles, result.events)
    reduced = nx.transitive_reduction(graph)
    waits = len(result.events.wait_event)
    needed = sum(kind == "event" for kind, _ in (source for source, _ in reduced.edges))
    assert waits <= 1.05 * needed, f"{waits} waits, {needed} needed"
    per_tile = np.diff(result.events.wait_ptr.astype(int))
    assert per_tile.max() <= 2 * configuration.workers * configuration.tiles_per_worker + 1


def test_an_operator_whose_readers_need_all_of_it_has_one_event() -> None:
    result = lowered(DEMO, 1, Configuration(2, 2))
    events_of: dict[str, set[int]] = {}
    calls_of = Counter(call.operator.name for call in result.tiles.calls)
    for tile, event in enumerate(result.events.signal):
        name = result.tiles.calls[int(result.tiles.call[tile])].operator.name
        events_of.setdefault(name, set()).add(int(event))
    assert len(events_of["talker.gate_up"]) == calls_of["talker.gate_up"]
    assert len(events_of["codec.up2"]) == 4 * calls_of["codec.up2"]


# -- what a tile needs of one producer ---------------------------------------------------------------------------------


def needs_of(reader: Operator, producer: Operator, count: int = 4, batch: int = 1) -> list[set[int]]:
    """For each tile of ``reader``, which of ``producer``'s tiles come before it."""
    sequence = (Call(producer, {}), Call(reader, {}))
    result = lower_calls(sequence, (1, 2), batch, Configuration(count))
    made, before = result.tiles.of_call(0), ancestors(result.tiles, result.events)
    return [{t for t in made if before[tile] >> t & 1} for tile in result.tiles.of_call(1)]


@settings(max_examples=80, deadline=None)
@given(convs, st.integers(1, 3), st.integers(1, 8))
def test_a_convolution_waits_for_its_window_and_no_more(shape: Conv, batch: int, count: int) -> None:
    above = Conv(rows=shape.rows, channels_in=4, channels_out=shape.channels_in)
    producer = Operator(name="p", shape=above, reads=("x",), writes=("y",))
    reader = Operator(name="r", shape=shape, reads=("y",), writes=("z",))
    made, mine = boxes_of(above, batch, count), boxes_of(shape, batch, count)
    for got, box in zip(needs_of(reader, producer, count, batch), mine, strict=True):
        window = conv_inputs(shape, *box[2:4])
        expected = {
            i for i, piece in enumerate(made)
            if piece.request_start < box.request_stop and box.request_start < piece.request_stop
            and any(piece.row_start <= row < piece.row_stop for row in range(window[0], window[-1] + 1))
        }  # fmt: skip
        assert got == expected


def test_an_attention_tile_waits_for_its_own_heads() -> None:
    #   heads        q0 q1 q2 q3 | k0 k1 | v0 v1     each a tile of 8 columns; q0 and q1 share k0 and v0
    qkv = Operator(name="qkv", shape=Matmul(rows=1, inner=32, outer=64, heads=8), reads=("x",), writes=("q", "kv"))
    attention = Attention(rows=1, heads=4, kv_heads=2, head_dim=8)
    reader = Operator(name="a", shape=attention, reads=("q", "kv"), writes=("a",))
    assert needs_of(reader, qkv, 8) == [{0, 4, 6}, {1, 4, 6}, {2, 5, 7}, {3, 5, 7}]


def test_a_scan_tile_waits_for_its_own_heads_and_groups() -> None:
    """x of four heads, then B and C of two groups of 24 columns, so that a group ends in the middle of a tile of 16."""
    scan = Scan(rows=1, heads=4, head_dim=16, state=24, groups=2)
    reader = Operator(name="s", shape=scan, reads=("mixed", "p", "state"), writes=("y", "state"))
    mixed = Operator(name="m", shape=Depthwise(rows=1, channels=160, kernel=4), reads=("p",), writes=("mixed",))
    #                                        x     B     C
    assert needs_of(reader, mixed, 10) == [{0, 4, 5, 7, 8}, {1, 4, 5, 7, 8}, {2, 5, 6, 8, 9}, {3, 5, 6, 8, 9}]
    projection = Matmul(rows=1, inner=8, outer=scan.projected)  # 64 of gate, 160 of x, B and C, 4 of time steps
    steps = Operator(name="p", shape=projection, reads=("x",), writes=("p",))
    assert needs_of(reader, steps, 16) == [{0, 14}, {1, 14}, {2, 14}, {3, 14}]


SEPARATE = {
    "queries alone": (Matmul(rows=1, inner=32, outer=32, heads=8), ("q",)),
    "keys and values alone": (Matmul(rows=1, inner=32, outer=32, heads=8), ("kv",)),
    "other heads": (Matmul(rows=1, inner=32, outer=96, heads=8), ("q", "kv")),
}


@pytest.mark.parametrize(("shape", "writes"), SEPARATE.values(), ids=SEPARATE)
def test_attention_waits_for_all_of_a_product_whose_columns_it_cannot_tell(
    shape: Matmul, writes: tuple[str, ...]
) -> None:
    attention = Attention(rows=1, heads=4, kv_heads=2, head_dim=8)
    reader = Operator(name="a", shape=attention, reads=("q", "kv"), writes=("a",))
    producer = Operator(name="p", shape=shape, reads=("x",), writes=writes)
    assert needs_of(reader, producer) == [{0, 1, 2, 3}] * 4


UNEVEN = {
    "longer input": (Conv(rows=640, channels_in=4, channels_out=4), Conv(rows=320, channels_in=4, channels_out=4)),
    "shorter input": (Gather(rows=4, tables=1, entries=9, width=4), Conv(rows=320, channels_in=4, channels_out=4)),
}


@pytest.mark.parametrize(("above", "shape"), UNEVEN.values(), ids=UNEVEN)
def test_a_convolution_waits_for_all_of_an_input_of_another_length(above: Shape, shape: Conv) -> None:
    producer = Operator(name="p", shape=above, reads=("x",), writes=("y",))
    reader = Operator(name="r", shape=shape, reads=("y",), writes=("z",))
    everything = set(range(len(boxes_of(above, 1, 4))))
    assert all(got == everything for got in needs_of(reader, producer))


def test_only_a_residual_needs_its_own_box_alone() -> None:
    producer = Operator(name="p", shape=Conv(rows=128, channels_in=4, channels_out=4), reads=("x",), writes=("y",))
    for residual, expected in ((True, [{0}, {1}, {2}, {3}]), (False, [{0, 1, 2, 3}] * 4)):
        shape = Conv(rows=128, channels_in=4, channels_out=4, residual=residual)
        reader = Operator(name="r", shape=shape, reads=("other", "y"), writes=("z",))
        assert needs_of(reader, producer) == expected


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("rows", [64, 70])
def test_a_residual_waits_for_each_tile_that_shares_an_element_with_it(rows: int, count: int) -> None:
    above = Conv(rows=rows, channels_in=4, channels_out=4, stride=3)
    shape = Conv(rows=3 * rows, channels_in=4, channels_out=4, residual=True)
    producer = Operator(name="p", shape=above, reads=("x",), writes=("y",))
    reader = Operator(name="r", shape=shape, reads=("other", "y"), writes=("z",))
    owner = np.zeros(3 * rows, int)
    for tile, box in enumerate(boxes_of(above, 1, count)):
        owner[box.row_start : box.row_stop] = tile
    expected = [set(owner[box.row_start : box.row_stop].tolist()) for box in boxes_of(shape, 1, count)]
    assert needs_of(reader, producer, count) == expected


# -- refusals ----------------------------------------------------------------------------------------------------------


def small_graph() -> tuple[TileGraph, EventGraph]:
    """Two tiles of one call signal event 0, a third waits for it and signals event 1."""
    gather, argmax = (
        Operator(name=name, shape=shape, reads=("a",), writes=("b",))
        for name, shape in (("first", Gather(rows=1, tables=1, entries=9, width=4)), ("second", Argmax(width=4)))
    )
    tiles = TileGraph(
        calls=(Call(gather, {}), Call(argmax, {})), lane=np.array([0, 1, 0], np.uint32), lanes=2,
        grids=(Grid((0, 1, 2), (0, 1), (0, 4)), Grid((0, 2), (0, 1), (0, 1))),
    )  # fmt: skip
    events = EventGraph(
        signal=np.array([0, 0, 1], np.uint32), threshold=np.array([2, 1], np.uint32),
        wait_ptr=np.array([0, 0, 0, 1], np.uint32), wait_event=np.array([0], np.uint32),
    )  # fmt: skip
    return tiles, events


BROKEN_EVENTS = {
    "too high": ({"threshold": [3, 1]}, "event 0 fires after 3 signals but 2 tiles signal it: .*wait for ever"),
    "too low": ({"threshold": [1, 1]}, "event 0 fires after 1 signals but 2 tiles signal it: .*start early"),
    "own event": ({"wait_event": [1]}, "tile 2 waits for event 1, which tile 2 signals no earlier: deadlock"),
    "later tile": ({"wait_ptr": [0, 1, 1, 1]}, "tile 0 waits for event 0, which tile 1 signals no earlier: deadlock"),
    "unknown signal": ({"signal": [0, 0, 2]}, "an event index is beyond the 2 events"),
    "unknown wait": ({"wait_event": [2]}, "an event index is beyond the 2 events"),
    "short": ({"signal": [0, 0]}, "3 tiles, 2 signals, 3 wait lists"),
    "waits fall": ({"wait_ptr": [0, 1, 0, 1]}, "wait_ptr must rise from 0 to the number of waits, 1"),
    "waits left over": ({"wait_ptr": [0, 0, 0, 0]}, "wait_ptr must rise from 0 to the number of waits, 1"),
}


@pytest.mark.parametrize(("change", "reason"), BROKEN_EVENTS.values(), ids=BROKEN_EVENTS)
def test_an_event_graph_that_would_hang_or_race_is_refused(change: dict[str, list[int]], reason: str) -> None:
    tiles, events = small_graph()
    check_events(tiles, events)
    broken = dataclasses.replace(events, **{name: np.array(values, np.uint32) for name, values in change.items()})
    with pytest.raises(GraphError, match=reason):
        check_events(tiles, broken)


BROKEN_TILES = {
    "a lane too few": (
        {"lane": np.array([0, 1], np.uint32)}, "2 calls, 2 cuts of 3 tiles, 2 lanes: lengths differ"
    ),
    "a cut too few": ({"grids": (Grid((0, 3), (0, 1), (0, 1)),)}, "2 calls, 1 cuts of 1 tiles, 3 lanes: lengths"),
    "lane": ({"lane": np.array([0, 2, 0], np.uint32)}, "tile 1 waits in lane 2; there are 2"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), BROKEN_TILES.values(), ids=BROKEN_TILES)
def test_a_broken_tile_graph_is_refused(change: dict[str, object], reason: str) -> None:
    tiles, _ = small_graph()
    check_tiles(tiles)
    with pytest.raises(GraphError, match=reason):
        check_tiles(dataclasses.replace(tiles, **change))  # type: ignore[arg-type]


BROKEN_GRIDS = {
    "empty": ("rows", (0, 4, 4, 8)),
    "negative": ("columns", (-4, 0, 4)),
    "falls": ("requests", (0, 2, 1)),
    "no run": ("inner", (0,)),
}


@pytest.mark.parametrize(("axis", "edges"), BROKEN_GRIDS.values(), ids=BROKEN_GRIDS)
def test_a_cut_with_empty_or_negative_boxes_is_refused_by_axis(axis: str, edges: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match=f"edges of {axis} are .*; they must rise from 0"):
        dataclasses.replace(Grid((0, 1), (0, 1), (0, 1)), **{axis: edges})  # type: ignore[arg-type]


# -- the published megakernel ------------------------------------------------------------------------------------------

HAZY = {132: (132, 8, 128, 132, 132), 148: (148, 8, 128, 148, 148)}


@pytest.mark.parametrize(("workers", "a_layer"), HAZY.items())
def test_llama_at_batch_1_has_the_published_instructions(workers: int, a_layer: tuple[int, ...]) -> None:
    """HazyResearch/Megakernels @7309cec: 532 a layer, 8,644 in all and 81 in series on 132 SMs; 9,428 on 148."""
    program = load_program("llama_3_2_1b")
    embed, layers, head, sample = items(program.further)
    assert [embed.name, sample.name] == ["decode.embed", "decode.sample"], "they run outside the published kernel"
    result = lower((layers, head), {}, 1, Configuration.parse(f"{workers}x1+c16+i2048+p1"))
    sizes = [len(grid) for grid in result.tiles.grids]
    assert sizes == [*a_layer * 16, workers]
    assert len(result.tiles) == {132: 8_644, 148: 9_428}[workers] == 16 * sum(a_layer) + workers
    graph = to_networkx(result.tiles, result.events)
    longest = nx.dag_longest_path_length(graph, weight=None, default_weight=1)
    assert longest == 2 * 81 - 1, "tile, event, tile, …, event: 81 tiles in a row"
    bytes_read = sum(call.operator.work(1, call.position).weight_bytes for call in result.tiles.calls)
    assert bytes_read == pytest.approx(2_471e6, rel=1e-3)


def test_a_part_of_a_down_projection_waits_for_a_quarter_of_the_gate_and_up() -> None:
    """As published; but where the residual that it adds to is what the gate and up read, it waits until all have."""
    layers = items(load_program("llama_3_2_1b").further)[1]
    assert isinstance(layers, Loop)
    up, down = (node for node in layers.body[-2:] if isinstance(node, Operator))
    configuration = Configuration.parse("132x1+c16+i2048+p1")
    for target, waited in (("elsewhere", [33] * 4), (up.reads[0], [132])):
        moved = dataclasses.replace(down, reads=(down.reads[0], target), writes=(target,))
        result = lower_calls((Call(up, {}), Call(moved, {})), (1, 2), 1, configuration)
        assert sorted(Counter(result.events.signal[:132].tolist()).values()) == waited
        starts = [result.tiles.boxes[t].inner_start for t in result.tiles.of_call(1)]
        assert starts == [2048 * quarter for quarter in range(4) for _ in range(33)]
        if target == "elsewhere":
            before = ancestors(result.tiles, result.events)
            assert [_set_bits(before[132 + t]) for t in (0, 32, 33)] == [
                set(range(33)), set(range(33)), set(range(33, 66))
            ]  # fmt: skip


def test_another_configuration_gives_another_tile_set() -> None:
    level = items(load_program("llama_3_2_1b").further)[1:3]
    texts = ("132x1+c16+i2048+p1", "132x1+c16+p1", "132x1+i2048+p1", "132x2+c16+i2048+p1", "132x1+c16+i2048+p4")
    tiles = {text: lower(level, {}, 1, Configuration.parse(text)).tiles for text in texts}
    assert len({tuple(graph.grids) for graph in tiles.values()}) == len(texts)


def test_a_split_reduction_is_followed_by_the_sum_of_its_parts() -> None:
    attention = Operator(
        name="a", shape=Attention(rows=1, heads=4, kv_heads=2, head_dim=8), reads=("q", "kv"), writes=("a",)
    )
    configuration = Configuration(16, partitions=3, inner=20)
    parts, total = steps(attention, 1, configuration)
    assert (parts.writes, total.reads, total.writes) == (("a+parts",), ("a+parts",), ("a",))
    assert len(cut(parts.shape, 1, configuration)) == 2 * 3
    assert total.shape == Reduce(rows=1, width=32, parts=3, statistics=8, unit=8)
    assert needs_of(total, parts, 16) == [{0}, {0}, {1}, {1}] or len(cut(total.shape, 1, configuration)) == 4
    wide = Matmul(rows=1, inner=64, outer=32, gated=True)
    product = Operator(name="m", shape=wide, reads=("x",), writes=("y",))
    assert [step.name for step in steps(product, 1, configuration)] == ["m", "m+reduce"]
    added = dataclasses.replace(product, shape=Matmul(rows=1, inner=64, outer=32, residual=True), reads=("x", "y"))
    assert steps(added, 1, configuration) == (added,), "parts are added to the output one by one"
    assert len(call_steps(Call(product, {}), 1, Configuration(16))) == 1


def test_parts_of_the_cache_are_no_more_than_there_are_workers_for() -> None:
    shape = Attention(rows=1, heads=32, kv_heads=8, head_dim=64)
    configuration = Configuration.parse("132x1+p16")
    assert [len(cut(shape, batch, configuration).inner) - 1 for batch in (1, 2, 4, 16, 64)] == [16, 8, 4, 1, 1]
    prefill = dataclasses.replace(shape, rows=16)
    assert len(cut(prefill, 1, configuration).inner) == 2


def test_rows_of_a_tile_are_bounded_and_whole_requests_stay_together() -> None:
    shape = Matmul(rows=3, inner=64, outer=256)
    configuration = Configuration(8, rows=8)
    grid = cut(shape, 5, configuration)
    assert (grid.requests, grid.rows) == ((0, 1, 3, 5), (0, 3))
    assert cut(shape, 2, configuration).requests == (0, 2)
    long = cut(dataclasses.replace(shape, rows=20), 2, configuration)
    assert (long.requests, long.rows) == ((0, 1, 2), (0, 6, 13, 20))


def test_a_block_of_rows_waits_for_its_own_rows_alone() -> None:
    """Two products of 4 requests in blocks of 2: a block of the second needs that block of the first."""
    first, second = (
        Operator(name=name, shape=Matmul(rows=1, inner=32, outer=32), reads=(reads,), writes=(writes,))
        for name, reads, writes in (("a", "x", "y"), ("b", "y", "z"))
    )
    result = lower_calls((Call(first, {}), Call(second, {})), (1, 2), 4, Configuration(4, rows=2))
    before = ancestors(result.tiles, result.events)
    assert [_set_bits(before[t]) for t in result.tiles.of_call(1)] == [{0, 1}, {0, 1}, {2, 3}, {2, 3}]


def _set_bits(mask: int) -> set[int]:
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


def test_a_million_tiles_are_lowered_from_what_their_shapes_share() -> None:
    """Cuts, parts and groups are worked out once a shape: 200 calls alike hold the same objects."""
    level = items(load_program("llama_3_2_1b").further)[1:2]
    tiles = lower(level, {}, 1, Configuration(132, 4)).tiles
    assert len({id(grid) for grid in tiles.grids}) == 5
    assert "boxes" not in tiles.__dict__, "boxes are made when somebody asks"
