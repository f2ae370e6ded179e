"""What a product and a convolution do with a block of sums: bias, gate, residual, and where it goes."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import words
from workbench.bodies.access import sigmoid, step, units, word

STRIP = tl.constexpr(32)  # columns at once: few enough that their addresses and residuals do not crowd the sums out


@triton.jit
def finish(record, weights, values, sums, total, request, rows, there, first, product: tl.constexpr):
    """Finish a block, strip by strip. ``there``: which rows are real; ``first``: the block's first column.

    ``product``: it may be a part of a split reduction, or gated.
    """
    wide: tl.constexpr = total.shape[1]
    if wide > STRIP:
        half: tl.constexpr = wide // 2
        low, high = tl.split(tl.permute(tl.reshape(total, (total.shape[0], 2, half)), (0, 2, 1)))
        finish(record, weights, values, sums, low, request, rows, there, first, product)
        finish(record, weights, values, sums, high, request, rows, there, first + half, product)
    elif product:
        if word(record, words.PART) != words.NONE:
            _apart(record, sums, total, rows, there, first)
        elif word(record, words.MODE) == words.GATED:
            _gated(record, weights, values, total, rows, there, first)
        else:
            _plain(record, weights, values, total, request, rows, there, first)
    else:
        _plain(record, weights, values, total, request, rows, there, first)


@triton.jit
def _biased(record, weights, total, columns):
    if word(record, words.BIAS_AT) != words.NONE:
        at = weights + units(record, words.BIAS_AT) + columns
        bias = tl.load(at, mask=columns < step(record, words.COLUMN_END), other=0)
        total += bias.to(tl.float32)[None, :]
    return total


@triton.jit
def _apart(record, sums, total, rows, there, first):
    columns = first + tl.arange(0, total.shape[1])
    inside = there[:, None] & (columns < step(record, words.COLUMN_END))[None, :]
    out = sums + units(record, words.OUT_AT) + word(record, words.PART) * units(record, words.PART_STEP)
    tl.store(out + rows[:, None] * step(record, words.OUT_STEP) + columns[None, :], total, mask=inside)


@triton.jit
def _gated(record, weights, values, total, rows, there, first):
    pairs: tl.constexpr = total.shape[1] // 2
    total = _biased(record, weights, total, first + tl.arange(0, total.shape[1]))
    gate, up = tl.split(tl.reshape(total, (total.shape[0], pairs, 2)))
    columns = first // 2 + tl.arange(0, pairs)
    inside = there[:, None] & (columns < step(record, words.COLUMN_END) // 2)[None, :]
    out = values + units(record, words.OUT_AT) + rows[:, None] * step(record, words.OUT_STEP) + columns[None, :]
    tl.store(out, (gate * sigmoid(gate) * up).to(values.dtype.element_ty), mask=inside)


@triton.jit
def _plain(record, weights, values, total, request, rows, there, first):
    columns = first + tl.arange(0, total.shape[1])
    inside = there[:, None] & (columns < step(record, words.COLUMN_END))[None, :]
    total = _biased(record, weights, total, columns)
    if word(record, words.OTHER_AT) != words.NONE:
        other = values + units(record, words.OTHER_AT) + request * units(record, words.OTHER_REQUEST)
        at = rows[:, None] * step(record, words.OTHER_STEP) + columns[None, :]
        total += tl.load(other + at, mask=inside, other=0).to(tl.float32)
    out = values + units(record, words.OUT_AT) + request * units(record, words.OUT_REQUEST)
    at = rows[:, None] * step(record, words.OUT_STEP) + columns[None, :]
    tl.store(out + at, total.to(values.dtype.element_ty), mask=inside)
