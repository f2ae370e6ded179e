"""What bodies share: words of their record, and RMSNorm's factor."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import words


@triton.jit
def word(record, index):
    """One word of the record."""
    return tl.load(record + index)


@triton.jit
def units(record, index):
    """A place, in elements."""
    return tl.load(record + index).to(tl.int64) * words.UNIT


@triton.jit
def step(record, index):
    """Elements from row to row: of 32 bits, so that addresses within a tile are."""
    return tl.load(record + index) * words.UNIT


@triton.jit
def sigmoid(x):
    """Logistic function."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def norm_factor(record, values, rows, size: tl.constexpr):
    """RMSNorm's factor of each of these input rows over their whole length, ``size`` elements at a time.

    1 where there is no norm. Its weights are folded into the product's.
    """
    epsilon = word(record, words.NORM)
    factor = tl.full(rows.shape, 1.0, tl.float32)
    if epsilon > 0:
        length = step(record, words.SIZE)
        given = values + units(record, words.IN_AT)
        inside = rows < word(record, words.ROW_END)
        squares = tl.zeros(rows.shape, tl.float32)
        for first in range(0, length, size):
            k = first + tl.arange(0, size)
            at = rows[:, None] * step(record, words.IN_STEP) + k[None, :]
            x = tl.load(given + at, mask=inside[:, None] & (k < length)[None, :], other=0).to(tl.float32)
            squares += tl.sum(x * x, 1)
        factor = 1 / tl.sqrt(squares / length + epsilon.to(tl.float32) * 1e-9)
    return factor
