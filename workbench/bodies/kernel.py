"""The persistent kernel: each block runs its queue of tiles; kinds of bodies that a region lacks are not in it."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.bodies import attention as attention_body
from workbench.bodies import convolutions, products, small, words
from workbench.bodies.access import word


@triton.jit
def persistent(
    queue, bounds, edges, events, weights, values, sums, tokens,
    kinds: tl.constexpr,
    called: tl.constexpr,
    gemv_columns: tl.constexpr, gemv_inner: tl.constexpr,
    mma_columns: tl.constexpr, mma_inner: tl.constexpr,
    attention_rows: tl.constexpr, attention_positions: tl.constexpr, attention_width: tl.constexpr,
    convolution_rows: tl.constexpr, convolution_columns: tl.constexpr, convolution_inner: tl.constexpr,
    lookup_columns: tl.constexpr,
    scan_rows: tl.constexpr, scan_width: tl.constexpr,
    depthwise_rows: tl.constexpr, depthwise_columns: tl.constexpr, depthwise_taps: tl.constexpr,
):  # fmt: skip
    """Block b runs records ``bounds[b]`` to ``bounds[b + 1]`` in order: wait, work, signal.

    ``events`` are zero at launch; all blocks must be resident. ``kinds``: bit k is set if kind k (``table.KINDS``) is
    in the kernel. ``called``: bodies are functions of their own.
    """
    block = tl.program_id(0)
    for i in range(tl.load(bounds + block), tl.load(bounds + block + 1)):
        record = queue + i * words.RECORD
        first = word(record, words.WAIT)
        for wait in range(first, first + word(record, words.WAITS)):
            event = events + tl.load(edges + 2 * wait)
            threshold = tl.load(edges + 2 * wait + 1)
            while tl.atomic_add(event, 0, sem="acquire", scope="gpu") < threshold:
                pass
        opcode = word(record, words.OPCODE)
        if kinds & 1:
            if opcode == 0:
                if called:
                    products.gemv_called(record, weights, values, sums, gemv_columns, gemv_inner)
                else:
                    products.gemv_inlined(record, weights, values, sums, gemv_columns, gemv_inner)
        if kinds & 2:
            if opcode == 1:
                if called:
                    products.mma_called(record, weights, values, sums, 64, mma_columns, mma_inner)
                else:
                    products.mma_inlined(record, weights, values, sums, 64, mma_columns, mma_inner)
        if kinds & 4:
            if opcode == 2:
                if called:
                    products.mma_called(record, weights, values, sums, 128, mma_columns, mma_inner)
                else:
                    products.mma_inlined(record, weights, values, sums, 128, mma_columns, mma_inner)
        if kinds & 8:
            if opcode == 3:
                if called:
                    attention_body.attention_called(
                        record, values, sums, attention_rows, attention_positions, attention_width
                    )
                else:
                    attention_body.attention_inlined(
                        record, values, sums, attention_rows, attention_positions, attention_width
                    )
        if kinds & 16:
            if opcode == 4:
                if called:
                    convolutions.convolution_called(
                        record, weights, values, convolution_rows, convolution_columns, convolution_inner
                    )
                else:
                    convolutions.convolution_inlined(
                        record, weights, values, convolution_rows, convolution_columns, convolution_inner
                    )
        if kinds & 32:
            if opcode == 5:
                if called:
                    small.lookup_called(record, weights, values, sums, tokens, lookup_columns)
                else:
                    small.lookup_inlined(record, weights, values, sums, tokens, lookup_columns)
        if kinds & 64:
            if opcode == 6:
                if called:
                    small.scan_called(record, weights, values, sums, scan_rows, scan_width)
                else:
                    small.scan_inlined(record, weights, values, sums, scan_rows, scan_width)
        if kinds & 128:
            if opcode == 7:
                if called:
                    convolutions.depthwise_called(
                        record, weights, values, depthwise_rows, depthwise_columns, depthwise_taps
                    )
                else:
                    convolutions.depthwise_inlined(
                        record, weights, values, depthwise_rows, depthwise_columns, depthwise_taps
                    )
        tl.debug_barrier()  # all of the block's stores come before its signal
        first = word(record, words.SIGNAL)
        for signal in range(first, first + word(record, words.SIGNALS)):
            event = events + tl.load(edges + 2 * signal)
            tl.atomic_add(event, tl.load(edges + 2 * signal + 1), sem="release", scope="gpu")
