"""Bodies that read much and compute little: embedding lookups, the greatest of a row, sums of parts, state updates."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import words
from workbench.bodies.access import sigmoid, step, units, word


def lookup(record, weights, values, sums, tokens, columns: tl.constexpr):
    """For each row of the box, by MODE.

    GATHER: the sum of COUNT embedding rows, of tables TAPS rows long, named by COUNT tokens a row at STATE_AT of
    ``tokens``, and ``other`` if it is there. GREATEST: the first index of the greatest input goes to ``tokens``, OUT_AT
    and a row's number. PLAIN and GATED: the sum of PARTS partial sums and ``other``, gated as in a product; weighed by
    their statistics, if there are any, a head of SIZE units each, COUNT heads a row.
    """
    mode = word(record, words.MODE)
    for row in range(word(record, words.ROW), word(record, words.ROW_END)):
        if mode == words.GREATEST:
            _greatest(record, values, tokens, row, columns)
        else:
            for first in range(step(record, words.COLUMN), step(record, words.COLUMN_END), columns):
                n = first + tl.arange(0, columns)
                inside = n < step(record, words.COLUMN_END)
                if mode == words.GATHER:
                    total = _looked_up(record, weights, tokens, row, n, inside)
                else:
                    total = _summed(record, sums, row, n, inside, mode)
                if word(record, words.OTHER_AT) != words.NONE:
                    other = values + units(record, words.OTHER_AT) + row * step(record, words.OTHER_STEP) + n
                    total += tl.load(other, mask=inside, other=0).to(tl.float32)
                out = values + units(record, words.OUT_AT) + row * step(record, words.OUT_STEP) + n
                tl.store(out, total.to(values.dtype.element_ty), mask=inside)


@triton.jit
def _looked_up(record, weights, tokens, row, n, inside):
    count, total = word(record, words.COUNT), tl.zeros(n.shape, tl.float32)
    for table in range(0, count):
        entry = tl.load(tokens + units(record, words.STATE_AT) + row * count + table)
        entry += table * word(record, words.TAPS)
        place = weights + units(record, words.WEIGHT_AT) + entry.to(tl.int64) * step(record, words.WEIGHT_STEP)
        total += tl.load(place + n, mask=inside, other=0).to(tl.float32)
    return total


@triton.jit
def _summed(record, sums, row, n, inside, mode):
    parts, part_step = word(record, words.PARTS), units(record, words.PART_STEP)
    given = sums + units(record, words.IN_AT) + row * step(record, words.IN_STEP)
    total = tl.zeros(n.shape, tl.float32)
    if mode == words.GATED:
        gate = tl.zeros(n.shape, tl.float32)
        for part in range(0, parts):
            gate += tl.load(given + part * part_step + 2 * n, mask=inside, other=0)
            total += tl.load(given + part * part_step + 2 * n + 1, mask=inside, other=0)
        total = gate * sigmoid(gate) * total
    elif word(record, words.STATISTIC_AT) == words.NONE:
        for part in range(0, parts):
            total += tl.load(given + part * part_step + n, mask=inside, other=0)
    else:
        head = n // step(record, words.SIZE)
        statistic = sums + units(record, words.STATISTIC_AT) + 2 * (row * word(record, words.COUNT) + head)
        greatest = tl.full(n.shape, float("-inf"), tl.float32)
        for part in range(0, parts):
            at = statistic + part * units(record, words.STATISTIC_STEP)
            greatest = tl.maximum(greatest, tl.load(at, mask=inside, other=0))
        weight = tl.zeros(n.shape, tl.float32)
        for part in range(0, parts):
            at = statistic + part * units(record, words.STATISTIC_STEP)
            share = tl.exp(tl.load(at, mask=inside, other=0) - greatest)
            weight += share * tl.load(at + 1, mask=inside, other=1)
            total += share * tl.load(given + part * part_step + n, mask=inside, other=0)
        total = total / weight
    return total


@triton.jit
def _greatest(record, values, tokens, row, columns: tl.constexpr):
    given = values + units(record, words.IN_AT) + row * step(record, words.IN_STEP)
    best = tl.full((columns,), float("-inf"), tl.float32)
    where = tl.full((columns,), 2147483647, tl.int32)
    for first in range(word(record, words.COLUMN), word(record, words.COLUMN_END), columns):
        n = first + tl.arange(0, columns)
        x = tl.load(given + n, mask=n < word(record, words.COLUMN_END), other=float("-inf")).to(tl.float32)
        where = tl.where(x > best, n, where)
        best = tl.maximum(best, x)
    top = tl.max(best, 0)
    index = tl.min(tl.where(best == top, where, 2147483647), 0)
    tl.store(tokens + units(record, words.OUT_AT) + row, index)


def scan(record, weights, values, sums, rows: tl.constexpr, width: tl.constexpr):
    """Selective scan of Mamba-2 (arXiv 2405.21060), columns are heads: ``h = e^(−e^A·d)·h + d·x⊗B``, ``y = h·C + D·x``.

    The time step ``d`` is softplus of its column and bias; y is multiplied by SiLU of its gate. A head's state is SIZE
    × TAPS units, at most ``width`` wide, fp32 in ``sums`` at STATE_AT. Words: COUNT of heads, GROUP of heads that share
    B and C; x, B and C are the input's columns; gate and time step are ``other``'s, the time steps from column PARTS.
    Weights: A, bias and D a head.
    """
    size, state = step(record, words.SIZE), step(record, words.TAPS)
    heads, group = word(record, words.COUNT), word(record, words.GROUP)
    n = tl.arange(0, width)
    for request in range(word(record, words.REQUEST), word(record, words.REQUEST_END)):
        x = values + units(record, words.IN_AT) + request * units(record, words.IN_REQUEST)
        other = values + units(record, words.OTHER_AT) + request * units(record, words.OTHER_REQUEST)
        out = values + units(record, words.OUT_AT) + request * units(record, words.OUT_REQUEST)
        kept = sums + units(record, words.STATE_AT) + request * units(record, words.STATE_REQUEST)
        for head in range(word(record, words.COLUMN), word(record, words.COLUMN_END)):
            own = weights + units(record, words.WEIGHT_AT) + head
            decay = -tl.exp(tl.load(own).to(tl.float32))
            bias = tl.load(own + heads).to(tl.float32)
            skip = tl.load(own + 2 * heads).to(tl.float32)
            b_at = heads * size + head // group * state
            c_at = b_at + heads // group * state
            for first in range(0, size, rows):
                p = first + tl.arange(0, rows)
                cells = kept + (head * size + p)[:, None] * state + n[None, :]
                inside = (p < size)[:, None] & (n < state)[None, :]
                h = tl.load(cells, mask=inside, other=0)
                for t in range(word(record, words.ROW), word(record, words.ROW_END)):
                    line, beside = x + t * step(record, words.IN_STEP), other + t * step(record, words.OTHER_STEP)
                    given = tl.load(line + head * size + p, mask=p < size, other=0).to(tl.float32)
                    b = tl.load(line + b_at + n, mask=n < state, other=0).to(tl.float32)
                    c = tl.load(line + c_at + n, mask=n < state, other=0).to(tl.float32)
                    raw = tl.load(beside + word(record, words.PARTS) + head).to(tl.float32) + bias
                    d = tl.maximum(raw, 0) + tl.log(1 + tl.exp(-tl.abs(raw)))
                    h = h * tl.exp(decay * d) + (d * given)[:, None] * b[None, :]
                    gate = tl.load(beside + head * size + p, mask=p < size, other=0).to(tl.float32)
                    y = (tl.sum(h * c[None, :], 1) + skip * given) * gate * sigmoid(gate)
                    to = out + t * step(record, words.OUT_STEP) + head * size + p
                    tl.store(to, y.to(values.dtype.element_ty), mask=p < size)
                tl.store(cells, h, mask=inside)


lookup_inlined, lookup_called = triton.jit(lookup), triton.jit(lookup, noinline=True)
scan_inlined, scan_called = triton.jit(scan), triton.jit(scan, noinline=True)
