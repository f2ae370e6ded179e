"""What a megakernel holds of an SM: the maximum over its tile bodies, and what that leaves for prefetched weights.

Kinds of bodies and their needs are in ``data/bodies.toml``, read off a compiler. A kernel of several bodies is taken to
be built with bodies as calls: registers and shared memory are then the maxima over them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from workbench.compose import Configuration
from workbench.errors import MeasureError
from workbench.hardware import Limits
from workbench.program import Operator
from workbench.shapes import Argmax, Attention, Conv, Depthwise, Experts, Gather, Matmul, Reduce, Scan, Shape

PATH = Path(__file__).resolve().parents[2] / "data" / "bodies.toml"
THREADS = 256  # 8 warps, as the bodies were compiled
PAGE_BYTES = 65_536  # weights of one tile: 16 columns of 2048 in bf16, four pages of Hazy's

KINDS: dict[type[Shape], str] = {
    Attention: "attention", Conv: "convolution", Gather: "lookup", Argmax: "lookup", Reduce: "lookup", Scan: "scan",
    Depthwise: "depthwise",
}  # fmt: skip


def body(shape: Shape, batch: int, configuration: Configuration, mma_rows: int) -> str:
    """The kind of body that runs a shape's tiles: products by the rows of a tile, others by their family.

    Products of ``mma_rows`` rows or more run on tensor cores.
    """
    if not isinstance(shape, Matmul | Experts):
        return KINDS[type(shape)]
    rows = batch * shape.rows
    rows = min(rows, configuration.rows or rows)
    return "gemv" if rows < mma_rows else "mma_rows_64" if rows <= 64 else "mma_rows_128"


@cache
def needs() -> dict[str, Limits]:
    """What each kind of body needs, from the file."""
    data = tomllib.loads(PATH.read_text())
    if missing := {"gemv", "mma_rows_64", "mma_rows_128", *KINDS.values()} - set(data):
        raise MeasureError(f"{PATH}: no body {min(missing)!r}")
    return {kind: Limits(entry["registers"] * THREADS, entry["shared_bytes"], THREADS) for kind, entry in data.items()}


def union(kinds: Iterable[str]) -> Limits:
    """What one block needs that runs all of these bodies: of each resource the maximum."""
    each = [needs()[kind] for kind in kinds]
    return Limits(max(n.registers for n in each), max(n.shared_bytes for n in each), max(n.threads for n in each))


def bodies(operators: Iterable[Operator], batch: int, configuration: Configuration, mma_rows: int) -> frozenset[str]:
    """Kinds of bodies that these operators are run by."""
    return frozenset(body(operator.shape, batch, configuration, mma_rows) for operator in operators)


@lru_cache(4096)
def prefetch_depth(kinds: frozenset[str], limits: Limits, most: int) -> int | None:
    """Tiles whose weights fit into the shared memory that a block of these bodies leaves; None if it cannot run.

    At most ``most``; 0: nothing is loaded before the events.
    """
    block = union(kinds)
    if block.shared_bytes > limits.shared_bytes or block.registers > limits.registers or block.threads > limits.threads:
        return None
    return min(most, (limits.shared_bytes - block.shared_bytes) // PAGE_BYTES)
