"""Shapes of operators, one class a family: what a call moves and computes as a function of batch and position.

Shapes are per request; a batch of B requests has B times the rows. One multiply-add counts as two FLOPs. To add a
family: a class here, a module in ``lower/``, a row in its FAMILIES.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Sum of ``tables`` embedding rows for each output row, and ``extra`` further input rows added to it.

    The first ``copied`` output rows are input rows as they are, and look nothing up.
    """

    rows: int
    tables: int
    entries: int
    width: int
    extra: bool = False
    copied: int = 0

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs (additions are not counted, as torch does not)."""
        looked_up = batch * (self.rows - self.copied) * self.width
        copied = batch * self.copied * self.width
        return self.tables * looked_up, copied + (looked_up if self.extra else 0), copied + looked_up, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """``rows`` × ``inner`` times ``inner`` × ``outer``, with what the field fuses around it.

    ``norm``: RMSNorm of the input rows first. ``gated``: ``outer`` columns of gate and as many of up, then
    SiLU(gate) · up. ``residual``: added to the output's old value. ``heads``: columns are heads of this width
    (query, key, value), rotated (RoPE) and appended to the cache; 0 where there is none. ``head_norm``: queries and
    keys are RMS-normalised a head first. ``per_column``: weights a column beside the matrix, 1 for a bias or a
    LayerScale, 2 for both.
    """

    rows: int
    inner: int
    outer: int
    norm: bool = False
    gated: bool = False
    residual: bool = False
    heads: int = 0
    head_norm: bool = False
    per_column: int = 0

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        columns = self.outer * (2 if self.gated else 1)
        weights = (self.inner + self.per_column) * columns + (self.inner if self.norm else 0)
        weights += 2 * self.heads if self.head_norm else 0
        out = batch * self.rows * self.outer
        reads = batch * self.rows * self.inner + (out if self.residual else 0)
        return weights, reads, out, 2 * batch * self.rows * self.inner * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention of ``rows`` new positions over ``position + rows`` cached ones.

    ``window``: each position sees itself and ``window - 1`` before it; 0: all. FLOPs count the full rectangle over what
    is cached and seen, as an unmasked matrix product would compute it.
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        seen = position + self.rows
        seen = min(seen, self.window + self.rows - 1) if self.window else seen
        out = batch * self.rows * self.heads * self.head_dim
        cached = 2 * batch * seen * self.kv_heads * self.head_dim
        return 0, out + cached, out, 4 * batch * self.rows * seen * self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Causal 1-D convolution over ``rows`` time steps, Snake in front and a residual behind where set.

    ``stride`` > 1: transposed, kernel ``taps · stride``, so each output sample takes ``taps`` inputs; ``rows`` is the
    input's length.
    """

    rows: int
    channels_in: int
    channels_out: int
    kernel: int = 1
    dilation: int = 1
    stride: int = 1
    snake: bool = False
    residual: bool = False
    taps: int = 2

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs (Snake's own are not counted, as torch does not)."""
        taps = self.taps * self.stride if self.stride > 1 else self.kernel
        weights = self.channels_in * self.channels_out * taps + self.channels_out
        weights += self.channels_in if self.snake else 0
        out = batch * self.rows * self.stride * self.channels_out
        reads = batch * self.rows * self.channels_in + (out if self.residual else 0)
        per_sample = self.taps if self.stride > 1 else self.kernel
        return weights, reads, out, 2 * out * self.channels_in * per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Argmax:
    """Index of the greatest of ``width`` logits, one a request."""

    width: int
    rows: int = 1

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        return 0, batch * self.rows * self.width, batch * self.rows, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Depthwise:
    """Causal 1-D convolution of each channel by itself, with a bias.

    Channels are columns ``offset`` to ``offset + channels`` of an input ``width`` wide (0: the input has no others).
    ``state``: the last ``kernel - 1`` inputs are read from a state, the second tensor, and left there.
    """

    rows: int
    channels: int
    kernel: int
    offset: int = 0
    width: int = 0
    state: bool = False

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        out = batch * self.rows * self.channels
        state = batch * (self.kernel - 1) * self.channels if self.state else 0
        return self.channels * (self.kernel + 1), out + state, out + state, 2 * out * self.kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Selective scan of Mamba-2 (arXiv 2405.21060): ``h = a·h + x⊗B``, ``y = h·C · SiLU(z)``.

    A head's state h is ``head_dim`` × ``state``. Reads x, B and C (``heads · head_dim`` columns, then twice
    ``groups · state``), the projection that they come from (gate z, x, B, C, a time step a head), and the state, which
    it leaves changed. An element of the state is as large as ``state_ratio`` activations: 2 for fp32 beside bf16. FLOPs
    are 5 an element of the state and row.
    """

    rows: int
    heads: int
    head_dim: int
    state: int
    groups: int
    state_ratio: int = 1

    @property
    def channels(self) -> int:
        """Columns of x, B and C together."""
        return self.heads * self.head_dim + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Columns of the projection: gate, then x, B and C, then time steps."""
        return self.heads * self.head_dim + self.channels + self.heads

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights (decay, skip and time-step bias a head), reads and writes, and FLOPs."""
        tokens, cells = batch * self.rows, self.heads * self.head_dim * self.state
        state = batch * cells * self.state_ratio
        inner = self.heads * self.head_dim
        reads = tokens * (self.channels + inner + self.heads) + state
        return 3 * self.heads, reads, tokens * inner + state, 5 * tokens * cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """One product of a mixture of experts: ``chosen`` of ``experts`` for each row, and a shared one always.

    Up: ``inner`` → ``outer`` columns of each chosen expert and ``shared`` of the shared one, side by side, given the
    input and the router's logits. ``down``: the reverse, summed to ``outer`` columns, ``inner`` being one expert's.
    ``norm``, ``gated``, ``residual`` as in ``Matmul``. Weights are those of the experts that a batch is expected to
    choose if the router is uniform; a box of columns stands for its expected share of them.
    """

    rows: int
    inner: int
    outer: int
    experts: int
    chosen: int
    shared: int = 0
    gated: bool = False
    norm: bool = False
    residual: bool = False
    down: bool = False

    @property
    def columns(self) -> int:
        """Columns of the output."""
        return self.outer if self.down else self.chosen * self.outer + self.shared

    def distinct(self, batch: int) -> float:
        """Experts that a batch is expected to choose, ``E·(1 − (1 − k/E)^tokens)``.

        >>> Experts(rows=1, inner=8, outer=8, experts=48, chosen=6).distinct(2)
        11.25
        """
        return float(self.experts * (1 - (1 - self.chosen / self.experts) ** (batch * self.rows)))

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs."""
        tokens, copies = batch * self.rows, 2 if self.gated else 1
        one = self.inner * self.outer * copies
        shared = self.shared * (self.outer if self.down else self.inner) * copies
        weights = round(self.distinct(batch) * one) + shared + (self.inner if self.norm else 0)
        out = tokens * self.columns
        reads = tokens * (self.chosen * self.inner + self.shared if self.down else self.inner + self.experts)
        reads += out if self.residual else 0
        return weights, reads, out, 2 * tokens * (self.chosen * one + shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Sum of ``parts`` partial results of an operator that was split along its reduction; lowering makes these.

    ``copies``: columns of partial sums a column of the result (2 for a gated product). ``statistics``: values beside
    them a part and row that weigh them (attention: a maximum and a sum a head). What the split operator does after its
    sum (SiLU, RoPE) is done here.
    """

    rows: int
    width: int
    parts: int
    copies: int = 1
    statistics: int = 0
    unit: int = 1  # columns that stay in one tile

    def elements(self, batch: int, position: int) -> tuple[int, int, int, int]:
        """Elements of weights, reads and writes, and FLOPs (counted with the operator that was split)."""
        tokens = batch * self.rows
        return 0, tokens * self.parts * (self.width * self.copies + self.statistics), tokens * self.width, 0


Shape = Gather | Matmul | Attention | Conv | Argmax | Depthwise | Scan | Experts | Reduce


def output_size(shape: Shape) -> tuple[int, int]:
    """Rows a request and columns of a shape's output."""
    match shape:
        case Gather() | Reduce():
            return shape.rows, shape.width
        case Matmul():
            return shape.rows, shape.outer
        case Attention() | Scan():
            return shape.rows, shape.heads * shape.head_dim
        case Conv():
            return shape.rows * shape.stride, shape.channels_out
        case Argmax():
            return shape.rows, 1
        case Depthwise():
            return shape.rows, shape.channels
        case Experts():
            return shape.rows, shape.columns
