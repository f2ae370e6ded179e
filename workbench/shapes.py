"""Shapes of operators, one class a family: what a call moves and computes as a function of batch and position.

Shapes are per request; a batch of B requests has B times the rows. One multiply-add counts as two FLOPs. To add a
family: a class here, a module in ``lower/``, a row in its FAMILIES.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Sum of ``tables`` embedding rows for each output row, and ``extra`` further input rows added to it."""

    rows: int
    tables: int
    entries: int
    width: int
    extra: bool = False

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs (additions are not counted, as torch does not)."""
        out = batch * self.rows * self.width
        return batch * self.rows * self.tables * self.width, out if self.extra else 0, out, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """``rows`` × ``inner`` times ``inner`` × ``outer``, with what the field fuses around it.

    ``norm``: RMSNorm of the input rows first. ``gated``: ``outer`` columns of gate and as many of up, then
    SiLU(gate) · up. ``residual``: added to the output's old value. ``heads``: columns are heads of this width
    (query, key, value), rotated (RoPE) and appended to the cache; 0 where there is none.
    """

    rows: int
    inner: int
    outer: int
    norm: bool = False
    gated: bool = False
    residual: bool = False
    heads: int = 0

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        columns = self.outer * (2 if self.gated else 1)
        weights = self.inner * columns + (self.inner if self.norm else 0)
        out = batch * self.rows * self.outer
        reads = batch * self.rows * self.inner + (out if self.residual else 0)
        return weights, reads, out, 2 * batch * self.rows * self.inner * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention of ``rows`` new positions over ``position + rows`` cached ones.

    FLOPs count the full rectangle, as an unmasked matrix product would compute it.
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        seen = position + self.rows
        out = batch * self.rows * self.heads * self.head_dim
        cached = 2 * batch * seen * self.kv_heads * self.head_dim
        return 0, out + cached, out, 4 * batch * self.rows * seen * self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Causal 1-D convolution over ``rows`` time steps, Snake in front and a residual behind where set.

    ``stride`` > 1: transposed, kernel ``2 · stride``, so two taps an output sample; ``rows`` is the input's length.
    """

    rows: int
    channels_in: int
    channels_out: int
    kernel: int = 1
    dilation: int = 1
    stride: int = 1
    snake: bool = False
    residual: bool = False

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs (Snake's own are not counted, as torch does not)."""
        taps = 2 * self.stride if self.stride > 1 else self.kernel
        weights = self.channels_in * self.channels_out * taps + self.channels_out
        weights += self.channels_in if self.snake else 0
        out = batch * self.rows * self.stride * self.channels_out
        reads = batch * self.rows * self.channels_in + (out if self.residual else 0)
        per_sample = 2 if self.stride > 1 else self.kernel
        return weights, reads, out, 2 * out * self.channels_in * per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Argmax:
    """Index of the greatest of ``width`` logits, one a request."""

    width: int
    rows: int = 1

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        return 0, batch * self.rows * self.width, batch * self.rows, 0


Shape = Gather | Matmul | Attention | Conv | Argmax
