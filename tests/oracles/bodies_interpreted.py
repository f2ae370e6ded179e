"""Tile bodies run by Triton's interpreter in fp32, against torch: prints the largest difference of each case as JSON.

A process of its own, since Triton reads TRITON_INTERPRET when a kernel is defined.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from itertools import pairwise

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.nn import functional as F

from workbench.bodies.launch import UNIT, Memory, Queue

TINY = {
    "gemv_columns": 16, "gemv_inner": 32, "mma_columns": 64, "mma_inner": 32,
    "attention_rows": 16, "attention_positions": 16, "attention_width": 32,
    "convolution_rows": 16, "convolution_columns": 32, "convolution_inner": 16,
    "lookup_columns": 64, "scan_rows": 8, "scan_width": 16,
    "depthwise_rows": 8, "depthwise_columns": 16, "depthwise_taps": 8,
}  # fmt: skip
EPSILON = 1e-5
NORM = {"norm": round(EPSILON * 1e9)}
CASES: dict[str, Callable[[], float]] = {}


class Desk:
    """The four memories, poisoned so that what is read without having been written shows."""

    def __init__(self) -> None:
        def poisoned() -> Memory:
            return Memory(torch.full((1 << 17,), float("nan")))

        self.weights, self.values, self.sums = poisoned(), poisoned(), poisoned()
        self.tokens = torch.full((1024,), -7, dtype=torch.int32)

    def put(self, memory: Memory, tensor: torch.Tensor) -> tuple[int, int]:
        padding = -tensor.shape[-1] % UNIT
        at, step = memory.place(F.pad(tensor.float(), (0, padding)))
        return at, step

    def room(self, memory: Memory, rows: int, columns: int) -> tuple[int, int]:
        at, step = memory.place(torch.full((rows, -(-columns // UNIT) * UNIT), float("nan")))
        return at, step

    def run(self, queue: Queue, called: bool = False) -> None:
        queue.run(self.weights, self.values, self.sums, self.tokens, TINY, called=called)


def case(function: Callable[[], float]) -> Callable[[], float]:
    CASES[function.__name__] = function
    return function


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference; infinite where something is not a number."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    return float((got - wanted).abs().nan_to_num(nan=math.inf).max())


def units(n: int) -> int:
    return -(-n // UNIT)


def product(kind: str, rows: int, inner: int, outer: int, *, gated: bool = False, called: bool = False) -> float:
    """Norm, product and what is behind it, cut into boxes of rows and columns that do not divide it."""
    desk, queue = Desk(), Queue()
    x, g = torch.randn(rows, inner), torch.rand(inner) + 0.5
    w, bias, other = torch.randn(outer, inner) / math.sqrt(inner), torch.randn(outer), torch.randn(rows, outer)
    in_at, in_step = desk.put(desk.values, x)
    weight_at, weight_step = desk.put(desk.weights, F.pad(w * g, (0, 0, 0, -outer % UNIT)))
    bias_at, _ = desk.put(desk.weights, bias)
    wide = outer // 2 if gated else outer
    out_at, out_step = desk.room(desk.values, rows, wide)
    other_at, other_step = desk.put(desk.values, other)
    behind = {"mode": 1} if gated else {"mode": 0, "other_at": other_at, "other_step": other_step}
    edges = [0, units(outer) // 2 // 2 * 2, units(outer)]
    for row, row_end in ((0, rows // 2), (rows // 2, rows)):
        for column, column_end in pairwise(edges):
            queue.tile(
                kind, row=row, row_end=row_end, column=column, column_end=column_end, inner=0, inner_end=units(inner),
                in_at=in_at, in_step=in_step, weight_at=weight_at, weight_step=weight_step, bias_at=bias_at,
                out_at=out_at, out_step=out_step, size=units(inner), **NORM, **behind,
            )  # fmt: skip
    desk.run(queue, called)
    made = F.linear(F.rms_norm(x, (inner,), g, EPSILON), w, bias)
    wanted = F.silu(made[:, 0::2]) * made[:, 1::2] if gated else made + other
    return off(desk.values.read(out_at, out_step, rows, wide), wanted)


@case
def gemv() -> float:
    return product("gemv", 3, 72, 40)


@case
def gemv_gated() -> float:
    return product("gemv", 2, 64, 48, gated=True)


@case
def gemv_called() -> float:
    return product("gemv", 1, 40, 24, called=True)


@case
def mma_rows_64() -> float:
    return product("mma_rows_64", 21, 72, 200)


@case
def mma_rows_128_gated() -> float:
    return product("mma_rows_128", 150, 40, 144, gated=True)


def split_product(kind: str, rows: int, gated: bool) -> float:
    """A reduction split in three, each part with the whole row's norm, and a sum of parts."""
    desk, queue = Desk(), Queue()
    inner, outer = 88, 48
    x, g, w = torch.randn(rows, inner), torch.rand(inner) + 0.5, torch.randn(outer, inner) / 9
    in_at, in_step = desk.put(desk.values, x)
    weight_at, weight_step = desk.put(desk.weights, w * g)
    parts_at, parts_step = desk.room(desk.sums, 3 * rows, outer)
    wide = outer // 2 if gated else outer
    out_at, out_step = desk.room(desk.values, rows, wide)
    other_at, other_step = desk.put(desk.values, torch.randn(rows, wide))
    done = queue.event()
    edges = [0, 4, 7, units(inner)]
    for part in range(3):
        queue.tile(
            kind, row=0, row_end=rows, column=0, column_end=units(outer), inner=edges[part], inner_end=edges[part + 1],
            in_at=in_at, in_step=in_step, weight_at=weight_at, weight_step=weight_step, size=units(inner), part=part,
            out_at=parts_at, out_step=parts_step, part_step=rows * parts_step, mode=0, signals=[(done, 1)], **NORM,
        )  # fmt: skip
    queue.tile(
        "lookup", row=0, row_end=rows, column=0, column_end=units(wide), in_at=parts_at, in_step=parts_step, parts=3,
        part_step=rows * parts_step, out_at=out_at, out_step=out_step, other_at=other_at, other_step=other_step,
        mode=int(gated), waits=[(done, 3)],
    )  # fmt: skip
    other = desk.values.read(other_at, other_step, rows, wide).clone()
    desk.run(queue)
    made = F.linear(F.rms_norm(x, (inner,), g, EPSILON), w)
    wanted = F.silu(made[:, 0::2]) * made[:, 1::2] if gated else made
    return off(desk.values.read(out_at, out_step, rows, wide), wanted + other)


@case
def gemv_split() -> float:
    return split_product("gemv", 2, gated=False)


@case
def mma_split_gated() -> float:
    return split_product("mma_rows_64", 9, gated=True)


def attend(rows: int, position: int, window: int, parts: int) -> float:
    """Two requests, three key and value heads of two query heads; heads of a tile cross a group's border."""
    desk, queue = Desk(), Queue()
    requests, kv_heads, group, width = 2, 3, 2, 24
    heads, length = kv_heads * group, position + rows
    q = torch.randn(requests, rows, heads, width)
    k, v = torch.randn(2, requests, length, kv_heads, width)
    in_at, in_step = desk.put(desk.values, q.flatten(2).flatten(0, 1))
    keys_at, cache_step = desk.put(desk.values, k.flatten(2).flatten(0, 1))
    values_at, _ = desk.put(desk.values, v.flatten(2).flatten(0, 1))
    out_at, out_step = desk.room(desk.values, requests * rows, heads * width)
    edges = [length * i // parts for i in range(parts + 1)]
    split: dict[str, int] = {}
    where, where_step = out_at, out_step
    if parts > 1:
        where, where_step = desk.room(desk.sums, parts * requests * rows, heads * width)
        statistic_at, _ = desk.room(desk.sums, parts, 2 * requests * rows * heads)
        split = {
            "part_step": requests * rows * where_step,
            "statistic_at": statistic_at,
            "statistic_step": units(2 * requests * rows * heads),
        }
    done = queue.event()
    for request in range(requests):
        for part in range(parts):
            for head, head_end in ((0, 3), (3, heads)):
                queue.tile(
                    "attention", request=request, request_end=request + 1, row=0, row_end=rows, column=head,
                    column_end=head_end, inner=edges[part], inner_end=edges[part + 1], in_at=in_at, in_step=in_step,
                    in_request=rows * in_step, out_at=where, out_step=where_step, out_request=rows * where_step,
                    position=position, window=window, group=group, size=units(width), count=heads, bias_at=keys_at,
                    state_at=values_at, weight_step=cache_step, state_request=length * cache_step, split=rows,
                    signals=[(done, 1)], **({"part": part} | split if parts > 1 else {}),
                )  # fmt: skip
    if parts > 1:
        queue.tile(
            "lookup", row=0, row_end=requests * rows, column=0, column_end=units(heads * width), in_at=where,
            in_step=where_step, parts=parts, out_at=out_at, out_step=out_step, mode=0, size=units(width), count=heads,
            waits=[(done, 2 * requests * parts)], **split,
        )  # fmt: skip
    desk.run(queue)
    mine, all_ = position + torch.arange(rows)[:, None], torch.arange(length)[None, :]
    mask = (all_ <= mine) & ((all_ > mine - window) if window else True)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    wanted = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2).flatten(0, 1)
    return off(desk.values.read(out_at, out_step, requests * rows, heads * width), wanted)


@case
def attention_step() -> float:
    return attend(rows=1, position=36, window=0, parts=1)


@case
def attention_step_in_parts() -> float:
    return attend(rows=1, position=50, window=0, parts=3)


@case
def attention_prefill() -> float:
    return attend(rows=19, position=0, window=0, parts=1)


@case
def attention_window_in_parts() -> float:
    """Some rows see nothing of some parts."""
    return attend(rows=5, position=40, window=7, parts=4)


def convolve(channels: int, made: int, kernel: int, dilation: int, stride: int, snake: bool, history: int) -> float:
    desk, queue = Desk(), Queue()
    requests, rows = 2, 21
    taps = kernel // stride
    x = torch.randn(requests, history + rows, channels)
    w, bias = torch.randn(made, channels, kernel) / math.sqrt(channels * taps), torch.randn(made)
    alpha, beta = torch.rand(channels) * 3 + 0.1, torch.rand(channels) + 0.5
    other = torch.randn(requests, rows * stride, made)
    in_at, in_step = desk.put(desk.values, x.flatten(0, 1))
    # [phase, tap, out, in]: kernel position phase + tap · stride of a transposed one, else the newest tap first
    order = [f + j * stride if stride > 1 else kernel - 1 - j for f in range(stride) for j in range(taps)]
    padded = F.pad(w, (0, 0, 0, -channels % UNIT, 0, -made % UNIT))
    weight_at, _ = desk.put(desk.weights, padded[:, :, order].permute(2, 0, 1))
    bias_at, _ = desk.put(desk.weights, bias)
    snake_at, _ = desk.put(desk.weights, torch.stack([alpha, 1 / beta]))
    other_at, other_step = desk.put(desk.values, other.flatten(0, 1))
    out_at, out_step = desk.room(desk.values, requests * rows * stride, made)
    edges = [0, rows * stride // 2 + 1, rows * stride]
    for row, row_end in pairwise(edges):
        for column in range(units(made)):
            queue.tile(
                "convolution", request=0, request_end=requests, row=row, row_end=row_end, column=column,
                column_end=column + 1, in_at=in_at + history * in_step, in_step=in_step,
                in_request=(history + rows) * in_step, out_at=out_at, out_step=out_step,
                out_request=rows * stride * out_step, weight_at=weight_at, bias_at=bias_at, other_at=other_at,
                other_step=other_step, other_request=rows * stride * other_step, taps=taps, dilation=dilation,
                stride=stride, size=units(channels), count=units(made), history=history,
                statistic_at=snake_at if snake else -1,
            )  # fmt: skip
    desk.run(queue)
    x = x.transpose(1, 2)
    if snake:
        x = x + torch.sin(alpha[:, None] * x) ** 2 / beta[:, None]
    if stride > 1:
        y = F.conv_transpose1d(x, w.transpose(0, 1), bias, stride)[..., : (history + rows) * stride]
    else:
        y = F.conv1d(F.pad(x, ((kernel - 1) * dilation, 0)), w, bias, dilation=dilation)
    wanted = (y[..., history * stride :].transpose(1, 2) + other).flatten(0, 1)
    return off(desk.values.read(out_at, out_step, requests * rows * stride, made), wanted)


@case
def convolution_with_snake() -> float:
    return convolve(channels=20, made=40, kernel=7, dilation=3, stride=1, snake=True, history=0)


@case
def convolution_with_history() -> float:
    return convolve(channels=16, made=12, kernel=3, dilation=2, stride=1, snake=False, history=4)


@case
def convolution_transposed() -> float:
    return convolve(channels=12, made=16, kernel=10, dilation=1, stride=5, snake=True, history=0)


@case
def convolution_to_one_channel() -> float:
    return convolve(channels=24, made=1, kernel=5, dilation=1, stride=1, snake=True, history=3)


def depth(rows: int, taps: int, state: bool, mode: int) -> float:
    desk, queue = Desk(), Queue()
    requests, channels, offset = 2, 21, 8
    x, w, bias = torch.randn(requests, rows, 40), torch.randn(channels, taps), torch.randn(channels)
    before = torch.randn(requests, taps - 1, channels) if state else torch.zeros(requests, taps - 1, channels)
    in_at, in_step = desk.put(desk.values, x.flatten(0, 1))
    state_at, state_step = desk.put(desk.values, before.flatten(0, 1))
    weight_at, weight_step = desk.put(desk.weights, w.T)
    bias_at, _ = desk.put(desk.weights, bias)
    out_at, out_step = desk.room(desk.values, requests * rows, channels)
    kept = {"state_at": state_at, "state_request": (taps - 1) * state_step, "count": state_step}
    for column in range(units(channels)):
        queue.tile(
            "depthwise", request=0, request_end=requests, row=0, row_end=rows, column=column, column_end=column + 1,
            in_at=in_at, in_step=in_step, in_request=rows * in_step, out_at=out_at, out_step=out_step,
            out_request=rows * out_step, weight_at=weight_at, weight_step=weight_step, bias_at=bias_at, taps=taps,
            group=offset // UNIT, mode=mode, **(kept if state else {"history": 0}),
        )  # fmt: skip
    desk.run(queue)
    given = torch.cat([before, x[..., offset : offset + channels]], 1)
    wanted = F.conv1d(given.transpose(1, 2), w[:, None].flip(2), bias, groups=channels).transpose(1, 2)
    wanted = F.silu(wanted) if mode == 4 else wanted
    error = off(desk.values.read(out_at, out_step, requests * rows, channels), wanted.flatten(0, 1))
    if state:
        left = desk.values.read(state_at, state_step, requests * (taps - 1), channels)
        error = max(error, off(left, given[:, rows:].flatten(0, 1)))
    return error


@case
def depthwise_step_with_state() -> float:
    """Fewer rows than the state holds: some of it moves up."""
    return depth(rows=2, taps=4, state=True, mode=4)


@case
def depthwise_chunk() -> float:
    return depth(rows=19, taps=7, state=False, mode=0)


@case
def scan() -> float:
    """Three rows of five heads in one group of B and C, cut into heads, against the recurrence as written."""
    desk, queue = Desk(), Queue()
    requests, rows, heads, size, state, groups = 2, 3, 4, 16, 8, 2
    inner, steps = heads * size, 2 * heads * size + 2 * groups * state
    x = torch.randn(requests, rows, inner + 2 * groups * state)
    z = torch.randn(requests, rows, steps + heads)
    a, bias, skip = torch.randn(3, heads)
    h = torch.randn(requests, heads, size, state)
    in_at, in_step = desk.put(desk.values, x.flatten(0, 1))
    other_at, other_step = desk.put(desk.values, z.flatten(0, 1))
    weight_at, _ = desk.put(desk.weights, torch.cat([a, bias, skip]))
    state_at, _ = desk.put(desk.sums, h.flatten())
    out_at, out_step = desk.room(desk.values, requests * rows, inner)
    for head, end in ((0, 1), (1, heads)):
        queue.tile(
            "scan", request=0, request_end=requests, row=0, row_end=rows, column=head, column_end=end, in_at=in_at,
            in_step=in_step, in_request=rows * in_step, other_at=other_at, other_step=other_step,
            other_request=rows * other_step, out_at=out_at, out_step=out_step, out_request=rows * out_step,
            weight_at=weight_at, state_at=state_at, state_request=heads * size * state // UNIT, size=size // UNIT,
            taps=state // UNIT, count=heads, group=heads // groups, parts=steps,
        )  # fmt: skip
    desk.run(queue)
    made = []
    for t in range(rows):
        d = F.softplus(z[:, t, steps:] + bias)
        given = x[:, t, :inner].reshape(requests, heads, size)
        b, c = x[:, t, inner:].reshape(requests, 2, groups, state).repeat_interleave(heads // groups, 2).unbind(1)
        h = torch.exp(-torch.exp(a) * d)[..., None, None] * h + torch.einsum("bh,bhp,bhn->bhpn", d, given, b)
        y = torch.einsum("bhpn,bhn->bhp", h, c) + skip[:, None] * given
        made.append(y.flatten(1) * F.silu(z[:, t, :inner]))
    error = off(desk.values.read(out_at, out_step, requests * rows, inner), torch.stack(made, 1).flatten(0, 1))
    left = desk.sums.read(state_at, 1, requests * heads * size * state // UNIT, UNIT)
    return max(error, off(left.flatten(), h.flatten()))


@case
def gather() -> float:
    """Rows of three tables added up, and another row."""
    desk, queue = Desk(), Queue()
    rows, tables, entries, width = 5, 3, 11, 100
    table, other = torch.randn(tables * entries, width), torch.randn(rows, width)
    chosen = torch.randint(entries, (rows, tables), dtype=torch.int32)
    desk.tokens[16 : 16 + chosen.numel()] = chosen.flatten()
    weight_at, weight_step = desk.put(desk.weights, table)
    other_at, other_step = desk.put(desk.values, other)
    out_at, out_step = desk.room(desk.values, rows, width)
    queue.tile(
        "lookup", row=0, row_end=rows, column=0, column_end=units(width), weight_at=weight_at, weight_step=weight_step,
        state_at=2, count=tables, taps=entries, mode=2, out_at=out_at, out_step=out_step, other_at=other_at,
        other_step=other_step,
    )  # fmt: skip
    desk.run(queue)
    wanted = other + F.embedding(chosen.long() + entries * torch.arange(tables), table).sum(1)
    return off(desk.values.read(out_at, out_step, rows, width), wanted)


@case
def greatest() -> float:
    """Ties go to the first index; padding behind a row is greater and not looked at."""
    desk, queue = Desk(), Queue()
    x = torch.randn(6, 203).round()
    in_at, in_step = desk.values.place(F.pad(x, (0, 5), value=99))
    queue.tile("lookup", row=0, row_end=6, column=0, column_end=203, in_at=in_at, in_step=in_step, out_at=1, mode=3)
    desk.run(queue)
    first = torch.tensor([row.tolist().index(row.max()) for row in x])
    return off(desk.tokens[UNIT : UNIT + 6].float(), first.float())


def decode(blocks: int, called: bool = False) -> float:
    """A decoder's step in one kernel: embedding, norm and QKV, attention in parts, output, norm and head, argmax.

    Two requests; each stage waits for the one before it. Blocks run one after another in the interpreter, so the second
    of two blocks has the last stages.
    """
    desk, queue = Desk(), Queue(blocks)
    requests, width, heads, head, position, vocabulary = 2, 48, 3, 16, 20, 90
    kinds = ("mma_rows_64", "gemv")
    table, g1, g2 = torch.randn(vocabulary, width), torch.rand(width) + 0.5, torch.rand(width) + 0.5
    qkv, o, top = torch.randn(3 * width, width) / 7, torch.randn(width, width) / 7, torch.randn(vocabulary, width) / 7
    length = position + 1
    cache = torch.randn(2, requests, length, width)
    tokens = torch.tensor([3, 77])
    desk.tokens[:2] = tokens
    places = {
        name: desk.put(desk.weights, F.pad(w, (0, 0, 0, -len(w) % UNIT)))
        for name, w in (("table", table), ("qkv", qkv * g1), ("o", o), ("top", top * g2))
    }
    keys_at, cache_step = desk.put(desk.values, cache[0].flatten(0, 1))
    values_at, _ = desk.put(desk.values, cache[1].flatten(0, 1))
    wide = units(width)
    x_at, x_step = desk.room(desk.values, requests, width)
    new_at, new_step = desk.room(desk.values, requests, 3 * width)
    mixed_at, mixed_step = desk.room(desk.values, requests, width)
    logits_at, logits_step = desk.room(desk.values, requests, vocabulary)
    parts_at, parts_step = desk.room(desk.sums, 2 * requests, width)
    statistic_at, _ = desk.room(desk.sums, 2, 2 * requests * heads)
    looked, made, cached, parted, mixed, added, scored = (queue.event() for _ in range(7))

    def linear(kind: str, name: str, outer: int, at: int, step: int, out: int, out_step: int, **more: object) -> None:
        weight_at, weight_step = places[name]
        cut = units(outer) // 2
        for column, end in ((0, cut), (cut, units(outer))):
            queue.tile(
                kind, row=0, row_end=requests, column=column, column_end=end, inner=0, inner_end=wide, in_at=at,
                in_step=step, weight_at=weight_at, weight_step=weight_step, out_at=out, out_step=out_step, size=wide,
                mode=0, **more,
            )  # fmt: skip

    queue.tile(
        "lookup", row=0, row_end=requests, column=0, column_end=wide, weight_at=places["table"][0],
        weight_step=places["table"][1], state_at=0, count=1, taps=vocabulary, mode=2, out_at=x_at, out_step=x_step,
        signals=[(looked, 1)],
    )  # fmt: skip
    linear(kinds[0], "qkv", 3 * width, x_at, x_step, new_at, new_step, waits=[(looked, 1)], signals=[(made, 1)], **NORM)
    for source, target in ((1, keys_at), (2, values_at)):  # the new position is appended, as a sum of one part would be
        for request in range(requests):
            queue.tile(
                "depthwise", request=0, request_end=1, row=0, row_end=1, column=0, column_end=wide,
                in_at=new_at + request * new_step, in_step=new_step, group=source * wide, taps=1, mode=0, history=0,
                weight_at=places_of_one(desk, width), weight_step=wide,
                out_at=target + (request * length + position) * cache_step, out_step=cache_step, in_request=0,
                out_request=0, waits=[(made, 2)], signals=[(cached, 1)],
            )  # fmt: skip
    split = {"part_step": requests * parts_step, "statistic_at": statistic_at}
    split["statistic_step"] = units(2 * requests * heads)
    for part, (first, last) in enumerate(((0, 11), (11, length))):
        queue.tile(
            "attention", request=0, request_end=requests, row=0, row_end=1, column=0, column_end=heads, inner=first,
            inner_end=last, in_at=new_at, in_step=new_step, in_request=new_step, out_at=parts_at, out_step=parts_step,
            out_request=parts_step, position=position, window=0, group=1, size=head // UNIT, count=heads,
            bias_at=keys_at, state_at=values_at, weight_step=cache_step, state_request=length * cache_step, split=1,
            part=part, waits=[(cached, 4)], signals=[(parted, 1)], **split,
        )  # fmt: skip
    queue.tile(
        "lookup", row=0, row_end=requests, column=0, column_end=wide, in_at=parts_at, in_step=parts_step, parts=2,
        out_at=mixed_at, out_step=mixed_step, mode=0, size=head // UNIT, count=heads, waits=[(parted, 2)],
        signals=[(mixed, 1)], **split,
    )  # fmt: skip
    residual = {"other_at": x_at, "other_step": x_step, "norm": 0}
    events = {"waits": [(mixed, 1)], "signals": [(added, 1)]}
    linear(kinds[1], "o", width, mixed_at, mixed_step, x_at, x_step, **events, **residual)
    last = {"block": blocks - 1}
    linear(
        kinds[1], "top", vocabulary, x_at, x_step, logits_at, logits_step, waits=[(added, 2)], signals=[(scored, 1)],
        **NORM, **last,
    )  # fmt: skip
    queue.tile(
        "lookup", row=0, row_end=requests, column=0, column_end=vocabulary, in_at=logits_at, in_step=logits_step,
        out_at=4, mode=3, waits=[(scored, 2)], **last,
    )  # fmt: skip
    desk.run(queue, called)
    x = F.embedding(tokens, table)
    q, k, v = F.linear(F.rms_norm(x, (width,), g1, EPSILON), qkv).chunk(3, -1)
    cache[0, :, -1], cache[1, :, -1] = k, v
    shaped = [t.reshape(requests, -1, heads, head).transpose(1, 2) for t in (q, cache[0], cache[1])]
    y = F.scaled_dot_product_attention(*shaped).transpose(1, 2).flatten(1)
    logits = F.linear(F.rms_norm(x + F.linear(y, o), (width,), g2, EPSILON), top)
    error = off(desk.values.read(logits_at, logits_step, requests, vocabulary), logits)
    return max(error, off(desk.tokens[32:34].float(), logits.argmax(-1).float()))


def places_of_one(desk: Desk, width: int) -> int:
    """Weights of a depthwise convolution that copies."""
    return desk.put(desk.weights, torch.ones(width))[0]


@case
def decoder_step() -> float:
    return decode(1)


@case
def decoder_step_in_two_blocks() -> float:
    return decode(2)


@case
def decoder_step_of_called_bodies() -> float:
    return decode(1, called=True)


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    wanted = sys.argv[2:] or list(CASES)
    print(json.dumps({name: CASES[name]() for name in wanted}))
