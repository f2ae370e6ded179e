"""Products of rows with a matrix, RMSNorm in front: on CUDA cores a few rows, on tensor cores up to ``rows``.

``out = f((x · factor) Wᵀ + bias) + other`` for the tile's rows and columns; W has a row for each output column. ``f``
is SiLU(gate) · up of neighbouring columns in mode GATED. A part of a split reduction is left in ``sums`` as it is,
scaled and nothing else.
"""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import words
from workbench.bodies.access import norm_factor, step, units, word
from workbench.bodies.finish import finish


def gemv(record, weights, values, sums, columns: tl.constexpr, inner: tl.constexpr):
    """A few rows, one after the other, ``columns`` × ``inner`` of the matrix at a time; it then lies in the L1."""
    last, x_step = step(record, words.INNER_END), step(record, words.IN_STEP)
    matrix, matrix_step = weights + units(record, words.WEIGHT_AT), step(record, words.WEIGHT_STEP)
    for first in range(step(record, words.COLUMN), step(record, words.COLUMN_END), columns):
        n = first + tl.arange(0, columns)
        block = matrix + matrix_step.to(tl.int64) * first
        for row in range(word(record, words.ROW), word(record, words.ROW_END)):
            rows = row + tl.arange(0, 1)
            x = values + units(record, words.IN_AT) + row * x_step
            total = tl.zeros((columns, inner), tl.float32)
            for k0 in range(step(record, words.INNER), last, inner):
                k = k0 + tl.arange(0, inner)
                inside = (n < step(record, words.COLUMN_END))[:, None] & (k < last)[None, :]
                w = tl.load(block + tl.arange(0, columns)[:, None] * matrix_step + k[None, :], mask=inside, other=0)
                total += w.to(tl.float32) * tl.load(x + k, mask=k < last, other=0).to(tl.float32)[None, :]
            result = tl.sum(total, 1)[None, :] * norm_factor(record, values, rows, inner)[:, None]
            there = rows < word(record, words.ROW_END)
            finish(record, weights, values, sums, result, 0, rows, there, first, True)


def mma(record, weights, values, sums, most: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr):
    """``most`` rows at a time on tensor cores, ``columns`` × ``inner`` of the matrix."""
    last, x_step = step(record, words.INNER_END), step(record, words.IN_STEP)
    matrix, matrix_step = weights + units(record, words.WEIGHT_AT), step(record, words.WEIGHT_STEP)
    x = values + units(record, words.IN_AT)
    for row in range(word(record, words.ROW), word(record, words.ROW_END), most):
        m = row + tl.arange(0, most)
        factor = norm_factor(record, values, m, inner)
        for first in range(step(record, words.COLUMN), step(record, words.COLUMN_END), columns):
            n = first + tl.arange(0, columns)
            block = matrix + matrix_step.to(tl.int64) * first
            total = tl.zeros((most, columns), tl.float32)
            for k0 in range(step(record, words.INNER), last, inner):
                k = k0 + tl.arange(0, inner)
                inside = (m < word(record, words.ROW_END))[:, None] & (k < last)[None, :]
                a = tl.load(x + m[:, None] * x_step + k[None, :], mask=inside, other=0)
                inside = (k < last)[:, None] & (n < step(record, words.COLUMN_END))[None, :]
                b = tl.load(block + tl.arange(0, columns)[None, :] * matrix_step + k[:, None], mask=inside, other=0)
                total = tl.dot(a, b, total, input_precision="ieee")
            total *= factor[:, None]
            finish(record, weights, values, sums, total, 0, m, m < word(record, words.ROW_END), first, True)


gemv_inlined, gemv_called = triton.jit(gemv), triton.jit(gemv, noinline=True)
mma_inlined, mma_called = triton.jit(mma), triton.jit(mma, noinline=True)
