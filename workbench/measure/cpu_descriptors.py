"""The rules of tile descriptors: what each opcode's columns may hold and where its tiles may reach.

Compiled code checks nothing, so a launch checks its descriptors here, once. Columns are documented at the opcodes in
`cpu_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import MeasureError
from workbench.measure import cpu_kernels as kernels

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int32]

# Columns of a whole opcode at once, as float64: exact below 2**53, and a product too large cannot wrap around.
_Columns = npt.NDArray[np.float64]
_Axis = tuple[_Columns | int, _Columns | int, _Columns | int]


class _Extent(NamedTuple):
    """What a tile may touch: `base`, plus ``start * stride … (stop - 1) * stride`` along each axis."""

    name: str
    base: _Columns
    axes: tuple[_Axis, ...]
    applies: npt.NDArray[np.bool_] | bool = True
    arena: str = "floats"


def _matmul_extents(d: _Columns) -> list[_Extent]:
    b, r, c, inner, a = (d[1], d[2]), (d[3], d[4]), (d[5], d[6]), (0, d[10], 1), d[17:]
    rope, half, position = d[16] == kernels.ROPE, d[17] // 2, (a[5] + d[3], a[5] + d[4])
    slots = ((*b, a[6]), (*position, a[2]), (0, a[2], 1))
    table = ((*position, half), (0, half, 1))
    return [
        _Extent("x", d[7], ((*b, d[8]), (*r, d[9]), inner)),
        _Extent("w", d[11], ((*c, d[10]), inner)),
        _Extent("w of up", d[11] + a[0] * d[10], ((*c, d[10]), inner), d[16] == kernels.GATED),
        _Extent("y", d[12], ((*b, d[13]), (*r, d[14]), (*c, 1)), ~rope),
        _Extent("y", d[12], ((*b, d[13]), (*r, d[14]), (d[5], np.minimum(d[6], a[1]), 1)), rope & (d[5] < a[1])),
        *(_Extent(name, base, slots, rope) for name, base in (("key cache", a[3]), ("value cache", a[4]))),
        *(_Extent(name, base, table, rope) for name, base in (("cos", a[7]), ("sin", a[8]))),
    ]


def _attention_extents(d: _Columns) -> list[_Extent]:
    b, r, h, width = (d[1], d[2]), (d[3], d[4]), (d[5], d[6]), (0, d[14], 1)
    cached = ((*b, d[12]), (0, d[16] + d[4], d[13]), (d[5] // d[15], (d[6] - 1) // d[15] + 1, d[14]), width)
    return [
        _Extent("q", d[7], ((*b, d[8]), (*r, d[9]), (*h, d[14]), width)),
        _Extent("k", d[10], cached),
        _Extent("v", d[11], cached),
        _Extent("y", d[17], ((*b, d[18]), (*r, d[19]), (*h, d[14]), width)),
    ]


def _gather_extents(d: _Columns) -> list[_Extent]:
    b, r, c = (d[1], d[2]), (d[3], d[4]), (d[5], d[6])
    return [
        _Extent("idx", d[7], ((*b, d[8]), (*r, d[9]), (0, d[11], d[10])), arena="ints"),
        _Extent("table", d[12], ((0, d[11], d[13]), (*c, 1))),
        _Extent("y", d[15], ((*b, d[16]), (*r, d[17]), (*c, d[18]))),
        _Extent("cond", d[19], ((*b, d[20]), (*c, 1)), d[19] >= 0),
    ]


def _argmax_extents(d: _Columns) -> list[_Extent]:
    b = (d[1], d[2])
    return [_Extent("x", d[3], ((*b, d[4]), (0, d[5], 1))), _Extent("out", d[6], ((*b, d[7]),), arena="ints")]


def _conv_extents(d: _Columns) -> list[_Extent]:
    b, c, window = (d[1], d[2]), (d[5], d[6]), d[10] * d[11]
    out = ((*b, d[17]), (*c, d[18]), (d[3], d[4], 1))
    return [
        _Extent("x", d[7], ((*b, d[8]), (0, d[10], d[9]), (d[3] - (d[11] - 1) * d[12], d[4], 1))),
        _Extent("w", d[13], ((*c, window), (0, window, 1))),
        _Extent("bias", d[14], ((*c, 1),)),
        _Extent("snake", d[15], ((0, d[10], 1),), d[15] >= 0),
        _Extent("y", d[16], out),
        _Extent("residual", d[20], out, d[19] == kernels.CONV_RESIDUAL),
    ]


def _upconv_extents(d: _Columns) -> list[_Extent]:
    b, c = (d[1], d[2]), (d[5], d[6])
    return [
        _Extent("x", d[7], ((*b, d[8]), (0, d[10], d[9]), (d[3] - 1, d[4], 1))),
        _Extent("w", d[12], ((0, 2 * d[10], d[13] * d[11]), (d[5] * d[11], d[6] * d[11], 1))),
        _Extent("bias", d[14], ((*c, 1),)),
        _Extent("snake", d[15], ((0, d[10], 1),), d[15] >= 0),
        _Extent("y", d[16], ((*b, d[17]), (*c, d[18]), (d[3] * d[11], d[4] * d[11], 1))),
    ]


def _matmul_scratch(d: _Columns) -> int:
    width = np.where(d[16] == kernels.ROPE, d[17], kernels.GROUP)
    return int(np.max(4 * (width + 8) + (d[2] - d[1]) * (d[4] - d[3])))


def _conv_scratch(d: _Columns) -> int:
    times, halo = d[4] - d[3], (d[11] - 1) * d[12]
    unfolded = halo + 32 + (d[2] - d[1]) * times * d[10] * d[11]
    return int(np.max(np.where(times < kernels.LANES, unfolded, d[10] * (halo + times + 32) + 8)))


def _upconv_scratch(d: _Columns) -> int:
    times = d[4] - d[3]
    return int(np.max(times + 24 + 2 * (d[2] - d[1]) * times * d[10] + 2 * (d[6] - d[5]) * d[11]))


class _Family(NamedTuple):
    """Rules for one opcode's columns, see `cpu_kernels`: which are ranges, which at least 1, which below a limit."""

    ranges: tuple[tuple[int, int], ...]
    positive: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, int, int], ...]
    extents: Callable[[_Columns], list[_Extent]]
    scratch: Callable[[_Columns], int]


_BRC = ((1, 2), (3, 4), (5, 6))
_FAMILIES = {
    kernels.NOP: _Family((), (), (), lambda d: [], lambda d: 1),
    kernels.MATMUL: _Family(
        _BRC, (("K", 10),), (("norm", 15, 2), ("epilogue", 16, 4)), _matmul_extents, _matmul_scratch
    ),
    kernels.ATTENTION: _Family(
        _BRC, (("width", 14), ("group", 15)), (), _attention_extents, lambda d: int(np.max(d[16] + d[4])) + 16
    ),
    kernels.GATHER: _Family(_BRC, (("n_tables", 11),), (), _gather_extents, lambda d: 1),
    kernels.ARGMAX: _Family(((1, 2),), (("width", 5),), (), _argmax_extents, lambda d: 1),
    kernels.CONV: _Family(
        _BRC, (("Cin", 10), ("K", 11), ("dilation", 12)), (("epilogue", 19, 3),), _conv_extents, _conv_scratch
    ),
    kernels.UPCONV: _Family(_BRC, (("Cin", 10), ("rate", 11)), (), _upconv_extents, _upconv_scratch),
    kernels.TOUCH: _Family((), (("n", 2),), (), lambda d: [_Extent("memory", d[1], ((0, d[2], 1),))], lambda d: 1),
}


class _Tiles(NamedTuple):
    """The tiles of one opcode: their ids, and their columns as rows."""

    opcode: int
    ids: Ints
    d: _Columns

    def refuse(self, bad: npt.NDArray[np.bool_], rule: str, *values: _Columns) -> None:
        """Raise for the first bad tile, with `rule` formatted with its `values`."""
        if bad.any():
            place = int(np.argmax(bad))
            text = rule.format(*(int(value[place]) for value in values))
            raise MeasureError(f"tile {self.ids[place]} ({kernels.BODY_OF[self.opcode].__name__}): {text}")


def check_descriptors(desc: Ints, floats: Floats, ints: Codes) -> int:
    """Scratch that the largest tile needs; raises for the first tile that breaks a rule or leaves an arena."""
    if desc.shape[1] != kernels.DESCRIPTOR_COLUMNS:
        raise MeasureError(f"desc has {desc.shape[1]} columns; a descriptor has {kernels.DESCRIPTOR_COLUMNS}")
    unknown = ~np.isin(desc[:, 0], list(_FAMILIES))
    if unknown.any():
        tile = np.argmax(unknown)
        raise MeasureError(f"tile {tile} has opcode {desc[tile, 0]}; there are 0 … {len(_FAMILIES) - 1}")
    scratch = 1
    for opcode, family in _FAMILIES.items():
        ids = np.flatnonzero(desc[:, 0] == opcode)
        if len(ids):
            tiles = _Tiles(opcode, ids, desc[ids].T.astype(np.float64))
            _check_values(tiles, family)
            _check_extents(tiles, family, {"floats": len(floats), "ints": len(ints)})
            scratch = max(scratch, family.scratch(tiles.d))
    return scratch


def _check_values(tiles: _Tiles, family: _Family) -> None:
    d = tiles.d
    for low, high in family.ranges:
        rule = f"columns {low} and {high} are the empty range {{}}:{{}}; ranges are half-open"
        tiles.refuse(d[low] >= d[high], rule, d[low], d[high])
    for name, column in family.positive:
        tiles.refuse(d[column] < 1, f"{name} is {{}}; it must be at least 1", d[column])
    for name, column, count in family.choices:
        tiles.refuse((d[column] < 0) | (d[column] >= count), f"{name} is {{}}; there are 0 … {count - 1}", d[column])
    if tiles.opcode == kernels.MATMUL:
        width = np.maximum(d[17], 1)
        whole = np.all(d[[5, 6, 18, 19]] % width == 0, axis=0) & (d[17] > 0) & (d[17] % 2 == 0)
        rule = "columns {}:{}, {} of queries and {} of keys must be whole heads of an even width, not of {}"
        tiles.refuse((d[16] == kernels.ROPE) & ~whole, rule, d[5], d[6], d[18], d[19], d[17])
    elif tiles.opcode == kernels.ATTENTION:
        tiles.refuse(d[16] + d[3] < 0, "pos0 is {} and the first row {}: it sees no position", d[16], d[3])
    elif tiles.opcode == kernels.UPCONV:
        tiles.refuse(d[6] > d[13], "channels end at {}, of {} in all", d[6], d[13])


def _check_extents(tiles: _Tiles, family: _Family, sizes: dict[str, int]) -> None:
    for extent in family.extents(tiles.d):
        low, high = extent.base, extent.base
        for start, stop, stride in extent.axes:
            ends = np.asarray(start) * stride, (np.asarray(stop) - 1) * stride
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        size = sizes[extent.arena]
        rule = f"{extent.name} spans elements {{}} … {{}} of {size} {extent.arena}"
        tiles.refuse(((low < 0) | (high >= size)) & extent.applies, rule, low, high)
