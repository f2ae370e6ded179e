"""Causal attention of new positions over a cache, one key and value head after the other (flash decoding).

Softmax is taken on the way with a running maximum (arXiv 2205.14135). A part of the cache leaves its sums not yet
divided, and beside them the maximum and the sum of weights of each row and head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import words
from workbench.bodies.access import step, units, word

LOWEST = tl.constexpr(-1e30)  # below all scores, and finite so that differences are


def attention(record, values, sums, rows: tl.constexpr, positions: tl.constexpr, width: tl.constexpr):
    """``rows`` pairs of new position and query head at a time; columns are query heads, heads at most ``width`` wide.

    Words: POSITION of the first row; GROUP of query heads that share a key and value head; SIZE, a head's width in
    units; COUNT of query heads; BIAS_AT and STATE_AT of the cache's keys and values, WEIGHT_STEP from position to
    position, STATE_REQUEST from request to request; SPLIT: rows of a request.
    """
    group = word(record, words.GROUP)
    first_head, last_head = word(record, words.COLUMN), word(record, words.COLUMN_END)
    for request in range(word(record, words.REQUEST), word(record, words.REQUEST_END)):
        for kv in range(first_head // group, (last_head + group - 1) // group):
            low, high = tl.maximum(first_head, kv * group), tl.minimum(last_head, (kv + 1) * group)
            pairs = (word(record, words.ROW_END) - word(record, words.ROW)) * (high - low)
            for first in range(0, pairs, rows):
                _block(record, values, sums, request, kv, low, high - low, first, pairs, rows, positions, width)


@triton.jit
def _block(
    record, values, sums, request, kv, low, heads, first, pairs,
    rows: tl.constexpr, positions: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    pair = first + tl.arange(0, rows)
    row, head = word(record, words.ROW) + pair // heads, low + pair % heads
    size = step(record, words.SIZE)
    d = tl.arange(0, width)
    inside = (pair < pairs)[:, None] & (d < size)[None, :]
    q = values + units(record, words.IN_AT) + request * units(record, words.IN_REQUEST)
    query = tl.load(q + (row * step(record, words.IN_STEP) + head * size)[:, None] + d[None, :], mask=inside, other=0)
    mine = word(record, words.POSITION) + row
    window = word(record, words.WINDOW)
    seen = tl.where(window > 0, mine - window, -1)  # the last position that a row does not see
    start = tl.maximum(word(record, words.INNER), tl.min(seen, 0) + 1)
    newest = tl.max(tl.where(pair < pairs, mine, 0), 0)
    stop = tl.minimum(word(record, words.INNER_END), newest + 1)
    cache = request * units(record, words.STATE_REQUEST) + kv * size
    keys, kept = values + units(record, words.BIAS_AT) + cache, values + units(record, words.STATE_AT) + cache
    cache_step = step(record, words.WEIGHT_STEP)
    scale = 1 / tl.sqrt(size.to(tl.float32))
    greatest = tl.full((rows,), LOWEST, tl.float32)
    weight = tl.zeros((rows,), tl.float32)
    total = tl.zeros((rows, width), tl.float32)
    for p0 in tl.range(start, stop, positions, num_stages=2):
        p = p0 + tl.arange(0, positions)
        there = (d < size)[:, None] & (p < stop)[None, :]
        k = tl.load(keys + p[None, :] * cache_step + d[:, None], mask=there, other=0)
        score = tl.dot(query, k, input_precision="ieee") * scale
        visible = (p < stop)[None, :] & (p[None, :] <= mine[:, None]) & (p[None, :] > seen[:, None])
        score = tl.where(visible, score, float("-inf"))
        highest = tl.maximum(greatest, tl.max(score, 1))
        shrink, part = tl.exp(greatest - highest), tl.exp(score - highest[:, None])
        greatest, weight = highest, weight * shrink + tl.sum(part, 1)
        there = (p < stop)[:, None] & (d < size)[None, :]
        v = tl.load(kept + p[:, None] * cache_step + d[None, :], mask=there, other=0)
        total = tl.dot(part.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
    at = (row * step(record, words.OUT_STEP) + head * size)[:, None] + d[None, :]
    out = units(record, words.OUT_AT) + request * units(record, words.OUT_REQUEST)
    part = word(record, words.PART)
    if part != words.NONE:
        tl.store(sums + out + part * units(record, words.PART_STEP) + at, total, mask=inside)
        token = request * word(record, words.SPLIT) + row
        pointer = sums + units(record, words.STATISTIC_AT) + part * units(record, words.STATISTIC_STEP)
        pointer += 2 * (token * word(record, words.COUNT) + head)
        tl.store(pointer, greatest, mask=pair < pairs)
        tl.store(pointer + 1, weight, mask=pair < pairs)
    else:
        tl.store(values + out + at, (total / weight[:, None]).to(values.dtype.element_ty), mask=inside)


attention_inlined, attention_called = triton.jit(attention), triton.jit(attention, noinline=True)
