"""Causal convolutions over time: of all channels on tensor cores with Snake in front, and of each channel by itself."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import words
from workbench.bodies.access import sigmoid, step, units, word
from workbench.bodies.finish import finish

# π in two parts for argument reduction (W. J. Cody and W. Waite, 1980): the first has so few bits that its multiples
# are exact in fp32 up to 2^14 periods.
PI_HIGH, PI_LOW = tl.constexpr(3.140625), tl.constexpr(9.67653589793e-4)
INVERSE_PI = tl.constexpr(0.31830988618)


@triton.jit
def _sine_squared(y):
    """sin²(y), of period π: reduced to [-π/2, π/2], then sin's Taylor series to its 11th power.

    Its error is below 1e-6 for |y| < 1000. No call of a library with a slow path, which would need a stack.
    """
    n = tl.floor(y * INVERSE_PI + 0.5)
    r = (y - n * PI_HIGH) - n * PI_LOW
    s = r * r
    p = 1.0 + s * (-1 / 6 + s * (1 / 120 + s * (-1 / 5040 + s * (1 / 362880 + s * (-1 / 39916800)))))
    return s * p * p


def convolution(record, weights, values, rows: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr):
    """``out[t·S + f] = bias + Σ_j W[f, j] snake(x[t − j·dilation]) + other`` for stride S and phase f < S.

    Words: TAPS a phase, DILATION, STRIDE; SIZE, channels in, in units; COUNT of channels out; HISTORY: rows that there
    are before row 0, those before are zero. W is [phase, tap, channel out, channel in], tap 0 the newest. STATISTIC_AT
    of Snake's α and then 1/β a channel in, ``x + sin²(αx)/β`` (arXiv 2006.08195); NONE: no Snake. Rows and columns are
    those of the output.
    """
    stride, x_step = word(record, words.STRIDE), step(record, words.IN_STEP)
    for request in range(word(record, words.REQUEST), word(record, words.REQUEST_END)):
        for phase in range(0, stride):
            first = (word(record, words.ROW) - phase + stride - 1) // stride
            last = (word(record, words.ROW_END) - phase + stride - 1) // stride
            for t0 in range(first, last, rows):
                for n0 in range(step(record, words.COLUMN), step(record, words.COLUMN_END), columns):
                    _block(record, weights, values, request, phase, t0, last, n0, x_step, rows, columns, inner)


@triton.jit
def _block(
    record, weights, values, request, phase, t0, last, n0, x_step,
    rows: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr,
):  # fmt: skip
    t, n = t0 + tl.arange(0, rows), n0 + tl.arange(0, columns)
    end, history = step(record, words.COLUMN_END), word(record, words.HISTORY)
    width, count, taps = step(record, words.SIZE), step(record, words.COUNT), word(record, words.TAPS)
    snake = word(record, words.STATISTIC_AT)
    alpha = weights + units(record, words.STATISTIC_AT)
    x = values + units(record, words.IN_AT) + request * units(record, words.IN_REQUEST)
    matrix = weights + units(record, words.WEIGHT_AT)
    blocks = (width + inner - 1) // inner
    total = tl.zeros((rows, columns), tl.float32)
    for j in range(0, taps * blocks):
        tap, c = j // blocks, (j % blocks) * inner + tl.arange(0, inner)
        at = t - tap * word(record, words.DILATION)
        there = ((at >= -history) & (t < last))[:, None] & (c < width)[None, :]
        a = tl.load(x + at[:, None] * x_step + c[None, :], mask=there, other=0)
        if snake != words.NONE:
            wide = a.to(tl.float32)
            frequency = tl.load(alpha + c, mask=c < width, other=0).to(tl.float32)
            inverse = tl.load(alpha + width + c, mask=c < width, other=0).to(tl.float32)
            a = (wide + inverse[None, :] * _sine_squared(wide * frequency[None, :])).to(a.dtype)
        block = matrix + ((phase * taps + tap) * count + n0).to(tl.int64) * width
        there = (c < width)[:, None] & (n < end)[None, :]
        w = tl.load(block + tl.arange(0, columns)[None, :] * width + c[:, None], mask=there, other=0)
        total = tl.dot(a, w, total, input_precision="ieee")
    made = t * word(record, words.STRIDE) + phase
    finish(record, weights, values, values, total, request, made, t < last, n0, False)


def depthwise(record, weights, values, rows: tl.constexpr, columns: tl.constexpr, most: tl.constexpr):
    """``out[t, c] = f(bias[c] + Σ_j w[j, c] x[t − j, c])``, f SiLU in mode SILU; at most ``most`` taps.

    Rows before 0 are those of a state of TAPS − 1 rows, COUNT channels in whole units wide, which is left holding the
    last inputs; NONE: they are HISTORY rows of the input, and zeros before. A tile holds a request's whole time if
    there is a state. GROUP: the input's column of channel 0, in units.
    """
    taps, state = word(record, words.TAPS), word(record, words.STATE_AT)
    end = step(record, words.COLUMN_END)
    for request in range(word(record, words.REQUEST), word(record, words.REQUEST_END)):
        x = values + units(record, words.IN_AT) + request * units(record, words.IN_REQUEST) + step(record, words.GROUP)
        out = values + units(record, words.OUT_AT) + request * units(record, words.OUT_REQUEST)
        kept = values + units(record, words.STATE_AT) + request * units(record, words.STATE_REQUEST)
        for first in range(step(record, words.COLUMN), end, columns):
            c = first + tl.arange(0, columns)
            for t0 in range(word(record, words.ROW), word(record, words.ROW_END), rows):
                t = t0 + tl.arange(0, rows)
                inside = (t < word(record, words.ROW_END))[:, None] & (c < end)[None, :]
                total = tl.zeros((rows, columns), tl.float32)
                if word(record, words.BIAS_AT) != words.NONE:
                    bias = tl.load(weights + units(record, words.BIAS_AT) + c, mask=c < end, other=0)
                    total += bias.to(tl.float32)[None, :]
                for tap in range(0, taps):
                    w = weights + units(record, words.WEIGHT_AT) + tap * step(record, words.WEIGHT_STEP) + c
                    given = _at(record, x, kept, state, t - tap, c, inside)
                    total += tl.load(w, mask=c < end, other=0).to(tl.float32)[None, :] * given
                if word(record, words.MODE) == words.SILU:
                    total = total * sigmoid(total)
                at = t[:, None] * step(record, words.OUT_STEP) + c[None, :]
                tl.store(out + at, total.to(values.dtype.element_ty), mask=inside)
            if state != words.NONE:
                i = tl.arange(0, most)
                inside = (i < taps - 1)[:, None] & (c < end)[None, :]
                newest = _at(record, x, kept, state, word(record, words.ROW_END) - taps + 1 + i, c, inside)
                tl.debug_barrier()  # all have read the state
                at = i[:, None] * step(record, words.COUNT) + c[None, :]
                tl.store(kept + at, newest.to(values.dtype.element_ty), mask=inside)


@triton.jit
def _at(record, x, kept, state, t, c, inside):
    """Inputs of these times and channels, from the state or the history where they are before 0."""
    history = tl.where(state == words.NONE, word(record, words.HISTORY), 0)
    here = inside & (t >= -history)[:, None]
    given = tl.load(x + t[:, None] * step(record, words.IN_STEP) + c[None, :], mask=here, other=0).to(tl.float32)
    if state != words.NONE:
        at = (t + word(record, words.TAPS) - 1)[:, None] * step(record, words.COUNT) + c[None, :]
        given += tl.load(kept + at, mask=inside & (t < 0)[:, None], other=0).to(tl.float32)
    return given


convolution_inlined, convolution_called = triton.jit(convolution), triton.jit(convolution, noinline=True)
depthwise_inlined, depthwise_called = triton.jit(depthwise), triton.jit(depthwise, noinline=True)
