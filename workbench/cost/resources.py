"""What a megakernel holds of an SM: one block for all its tile bodies, however it is built.

A region's bodies share one kernel, so registers, shared memory and threads of a block are those of their union, read
off a compiler (``bodies.table``). How the kernel is built decides how much of the union is real, so a region has a
*ladder* of builds and is priced at its best. A rung is a build and how many of its blocks live on an SM:

- ``inlined``: all bodies in one function; registers are then often more than the maximum over the bodies;
- ``capped``: the same with so few registers that two blocks fit; what does not fit is spilled, SPILL_RATE;
- ``called``: each body a function; registers are the maximum, and each tile pays CALL_NS.

Of each SM's shared memory, what the blocks leave is pages for weights that are loaded ahead, PAGE_BYTES a tile. More
blocks have more loads in flight and leave fewer pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache

from workbench.bodies.table import Reading, readings
from workbench.compose import Configuration
from workbench.effects import Effects
from workbench.hardware import Multiprocessor
from workbench.program import Operator
from workbench.shapes import Argmax, Attention, Conv, Depthwise, Experts, Gather, Matmul, Reduce, Scan, Shape

PAGE_BYTES = 65_536  # weights of one tile: 16 columns of 2048 in bf16, four pages of Hazy's
CALL_NS = 20  # a call and its return, some 35 clocks; assumed, no measurement is known
SPILL_RATE = 128  # bytes a clock and SM: an L1's width; each spilled byte is taken to move once a tile
BLOCK_OVERHEAD_BYTES = 1_024  # of shared memory that the driver keeps of each block, compute capability 8.0 and later
MOST_BLOCKS = 32
PRICED_SHAPE = "large"  # of tiles; small ones cut operators differently, and no configuration does so yet
LANES_PER_WARP = 32
REGISTER_UNIT = 8  # registers a thread are given out in eights

KINDS: dict[type[Shape], str] = {
    Attention: "attention", Conv: "convolution", Gather: "lookup", Argmax: "lookup", Reduce: "lookup", Scan: "scan",
    Depthwise: "depthwise",
}  # fmt: skip
# The compiled architecture that stands for each compute capability; others take the one before them in order.
ARCHITECTURES = {"8.0": "sm_80", "9.0": "sm_90", "12.0": "sm_120"}


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """What a megakernel's blocks hold of an SM, and what its tiles pay for it.

    ``pages``: tiles whose weights are held ahead; ``blocks`` of ``warps`` each live on an SM; ``tile_ns`` is added to
    each tile and ``spill_ns`` to those of a kind. ``own``: there is no union, each body has an SM to itself.
    """

    pages: int
    blocks: int = 1
    warps: int = 8
    tile_ns: int = 0
    spill_ns: tuple[tuple[str, int], ...] = ()
    own: bool = False
    build: str = field(default="", compare=False)

    def beats(self, other: Held) -> bool:
        """Whether no region is slower with this than with the other."""
        mine, theirs = dict(self.spill_ns), dict(other.spill_ns)
        return (
            self.pages >= other.pages
            and self.blocks >= other.blocks
            and self.warps >= other.warps
            and self.tile_ns <= other.tile_ns
            and all(ns <= theirs.get(kind, 0) for kind, ns in mine.items())
        )


def body(shape: Shape, batch: int, configuration: Configuration, mma_rows: int) -> str:
    """The kind of body that runs a shape's tiles: products by the rows of a tile, others by their family.

    Products of ``mma_rows`` rows or more run on tensor cores.
    """
    if not isinstance(shape, Matmul | Experts):
        return KINDS[type(shape)]
    rows = batch * shape.rows
    rows = min(rows, configuration.rows or rows)
    return "gemv" if rows < mma_rows else "mma_rows_64" if rows <= 64 else "mma_rows_128"


def bodies(operators: Iterable[Operator], batch: int, configuration: Configuration, mma_rows: int) -> frozenset[str]:
    """Kinds of bodies that these operators are run by."""
    return frozenset(body(operator.shape, batch, configuration, mma_rows) for operator in operators)


def architecture(capability: str) -> str:
    """The compiled architecture that stands for a compute capability.

    >>> architecture("8.9"), architecture("10.0"), architecture("12.1")
    ('sm_80', 'sm_90', 'sm_120')
    """
    wanted = tuple(map(int, capability.split(".")))
    known = sorted(ARCHITECTURES, key=lambda text: tuple(map(int, text.split("."))))
    below = [text for text in known if tuple(map(int, text.split("."))) <= wanted]
    return ARCHITECTURES[below[-1] if below else known[0]]


def blocks_per_sm(reading: Reading, sm: Multiprocessor) -> int:
    """Blocks of a kernel that an SM can hold at once; 0: not even one."""
    threads = reading.warps * LANES_PER_WARP
    if reading.shared_bytes > sm.block_shared_bytes:
        return 0
    registers = -(-reading.registers // REGISTER_UNIT) * REGISTER_UNIT * threads
    return min(
        sm.registers // registers,
        sm.shared_bytes // (reading.shared_bytes + BLOCK_OVERHEAD_BYTES),
        sm.threads // threads,
        MOST_BLOCKS,
    )


def pages(reading: Reading, blocks: int, sm: Multiprocessor, most: int) -> int:
    """Pages of PAGE_BYTES that so many resident blocks have beside what their bodies need, at most ``most``."""
    each = min(sm.block_shared_bytes, sm.shared_bytes // blocks - BLOCK_OVERHEAD_BYTES) - reading.shared_bytes
    return min(most, blocks * max(0, each // PAGE_BYTES))


@lru_cache(4096)
def ladder(
    kinds: frozenset[str], sm: Multiprocessor, most: int, effects: Effects, tiles_per_sm: int
) -> tuple[Held, ...]:
    """The rungs on which a kernel of these bodies may be best, at most ``most`` pages; () if it cannot run.

    No more blocks live on an SM than an operator has tiles for it. Rungs that another one beats whatever the region are
    left out.
    """
    if not effects.union:
        fits = all(ladder(frozenset({kind}), sm, most, Effects(), tiles_per_sm) for kind in kinds)
        return (Held(most, own=True, build="each body by itself"),) if fits else ()
    found = sorted(
        _rungs(kinds, sm, most, effects, tiles_per_sm), key=lambda held: (-held.pages, -held.blocks, held.tile_ns)
    )
    best: list[Held] = []
    for held in found:
        if not any(other.beats(held) for other in best):
            best = [*(other for other in best if not held.beats(other)), held]
    return tuple(best)


def _rungs(kinds: frozenset[str], sm: Multiprocessor, most: int, effects: Effects, tiles_per_sm: int) -> Iterator[Held]:
    for (build, warps, shape), reading in builds(kinds, architecture(sm.capability)).items():
        if shape != PRICED_SHAPE or effects.build not in ("", build):
            continue
        for blocks in range(1, min(tiles_per_sm, blocks_per_sm(reading, sm)) + 1):
            yield Held(
                pages=pages(reading, blocks, sm, most),
                blocks=blocks,
                warps=warps,
                tile_ns=CALL_NS if build == "called" and len(kinds) > 1 else 0,
                spill_ns=_spills(kinds, reading, sm),
                build=f"{build}, {warps} warps, {shape} tiles, {blocks} blocks an SM",
            )


def _spills(kinds: frozenset[str], reading: Reading, sm: Multiprocessor) -> tuple[tuple[str, int], ...]:
    """What each tile pays whose body needs more registers, by itself, than the kernel has."""
    if not reading.spill_bytes:
        return ()
    ns = reading.spill_bytes * reading.warps * LANES_PER_WARP / SPILL_RATE / sm.clock_hz * 1e9
    alone = {kind: builds(frozenset({kind}), architecture(sm.capability)) for kind in kinds}
    needs = {
        kind: min(r.registers for (build, *_), r in each.items() if build != "capped") for kind, each in alone.items()
    }
    hungry = [kind for kind, registers in needs.items() if registers >= reading.registers] or list(kinds)
    return tuple((kind, round(ns)) for kind in sorted(hungry))


@cache
def builds(kinds: frozenset[str], arch: str) -> dict[tuple[str, int, str], Reading]:
    """Readings of a kernel of these bodies by build, warps and tile shape.

    A union that was not compiled is taken as bodies that are called, of each resource the maximum over its bodies: at
    best so, as compiled unions of called bodies take up to a quarter more registers than the hungriest alone.
    """
    found = {
        (build, warps, shape): reading
        for (its, build, warps, shape, union), reading in readings().items()
        if its == arch and union == kinds
    }
    if found or len(kinds) == 1:
        return found
    alone = [builds(frozenset({kind}), arch) for kind in sorted(kinds)]
    for key in alone[0]:
        each = [one[key] for one in alone if key in one]
        if key[0] == "called" and len(each) == len(kinds):
            found[key] = Reading(
                **{
                    name: max(getattr(r, name) for r in each)
                    for name in ("registers", "shared_bytes", "spill_bytes", "stack_bytes", "code_bytes", "warps")
                }
            )
    return found


@dataclass(frozen=True, slots=True)
class Flight:
    """Bytes that an SM's blocks have in flight: within their bodies, and of what pages hold too."""

    body_bytes: float
    staged_bytes: float


@lru_cache(4096)
def flight(kind: str, held: Held | None, sm: Multiprocessor, per_warp: float, most: int, tiles_per_sm: int) -> Flight:
    """What an SM has in flight while it runs tiles of this kind, so many at once at most.

    Each block has ``per_warp`` a warp and what its body stages through shared memory; all free pages (at most ``most``)
    may hold loads instead. ``held`` None, or without a union: the kind's own kernel, on the rung that has the most.
    Where none of those that were compiled fits, a library is taken to have one that just does.
    """
    kinds = frozenset({kind})
    readings_of = builds(kinds, architecture(sm.capability)).values()
    staged = min(sm.block_shared_bytes, max(reading.shared_bytes for reading in readings_of))

    def of(rung: Held) -> tuple[float, float]:
        within = max(1, min(rung.blocks, tiles_per_sm)) * (rung.warps * per_warp + staged)
        return max(within, rung.pages * PAGE_BYTES), within

    own = held is None or held.own
    rungs = list(_rungs(kinds, sm, most, Effects(), tiles_per_sm)) or [Held(pages=0)] if own else [held]
    through_pages, within = max(of(rung) for rung in rungs if rung is not None)
    return Flight(within, through_pages)
