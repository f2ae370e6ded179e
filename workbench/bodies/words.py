"""A record of a queue: one tile, RECORD int32 words, as bodies read it and as a host writes it.

The first words are the same for all bodies: what runs, what it waits for and signals, and the box that the tile is of
its operator. The rest name the operator's operands; a body that lacks an operand does not read its word.

Places in memory (``*_AT``) and steps between rows (``*_STEP``) are in units of UNIT elements, so that loads are 16
bytes wide at 2 bytes an element. Rows of matrices and of activations are padded to whole units with zeros.
"""

from __future__ import annotations

import triton.language as tl

RECORD = tl.constexpr(48)
UNIT = tl.constexpr(8)
NONE = tl.constexpr(-1)  # an operand that is not there

OPCODE = tl.constexpr(0)  # place of the kind in ``table.KINDS``
WAIT = tl.constexpr(1)  # first of its entries in the list of (event, threshold)
WAITS = tl.constexpr(2)
SIGNAL = tl.constexpr(3)  # first of its entries in the list of (event, increment)
SIGNALS = tl.constexpr(4)

# The tile's box, half-open. Columns are in units, for attention and scan they are heads, for the greatest of a row
# elements; inner is in units for products, in positions for attention.
REQUEST, REQUEST_END = tl.constexpr(5), tl.constexpr(6)
ROW, ROW_END = tl.constexpr(7), tl.constexpr(8)
COLUMN, COLUMN_END = tl.constexpr(9), tl.constexpr(10)
INNER, INNER_END = tl.constexpr(11), tl.constexpr(12)
PART = tl.constexpr(13)  # which part of a split reduction this is; NONE: it is not split

# Tensors: where, and the steps from row to row and from request to request.
IN_AT, IN_STEP, IN_REQUEST = tl.constexpr(14), tl.constexpr(15), tl.constexpr(16)
OUT_AT, OUT_STEP, OUT_REQUEST = tl.constexpr(17), tl.constexpr(18), tl.constexpr(19)
WEIGHT_AT, WEIGHT_STEP = tl.constexpr(20), tl.constexpr(21)
OTHER_AT, OTHER_STEP, OTHER_REQUEST = tl.constexpr(22), tl.constexpr(23), tl.constexpr(24)
BIAS_AT = tl.constexpr(25)
PART_STEP = tl.constexpr(26)  # between parts of partial sums
STATISTIC_AT, STATISTIC_STEP = tl.constexpr(27), tl.constexpr(28)  # maximum and sum a row and head; between parts
STATE_AT, STATE_REQUEST = tl.constexpr(29), tl.constexpr(30)

MODE = tl.constexpr(31)
SIZE = tl.constexpr(32)  # in units; products: the whole reduction; scan and attention: width of a head; see each body
COUNT = tl.constexpr(33)
TAPS = tl.constexpr(34)
DILATION = tl.constexpr(35)
STRIDE = tl.constexpr(36)
HISTORY = tl.constexpr(37)
POSITION = tl.constexpr(38)
WINDOW = tl.constexpr(39)
GROUP = tl.constexpr(40)
NORM = tl.constexpr(41)  # RMSNorm's epsilon in units of 1e-9; 0: no norm
PARTS = tl.constexpr(42)
SPLIT = tl.constexpr(43)

# MODE of a product, and of a sum of parts
PLAIN = tl.constexpr(0)
GATED = tl.constexpr(1)  # columns are pairs of gate and up: SiLU(gate) · up
# MODE of a lookup
GATHER = tl.constexpr(2)
GREATEST = tl.constexpr(3)
# MODE of a depthwise convolution
SILU = tl.constexpr(4)
