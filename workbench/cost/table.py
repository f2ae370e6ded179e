"""Benchmark tables: the time of each tile of each operator, run alone, by batch, position and configuration.

Between measured positions and batches times are interpolated, beyond them extrapolated along the last segment, and
the answer says which. Only attention depends on the position; other operators are measured at one.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workbench.compose import Configuration
from workbench.cost.resources import Held
from workbench.errors import CompositionError, MeasureError
from workbench.hardware import Provenance, worst
from workbench.lower.lowering import operator_cut
from workbench.program import Call, Operator
from workbench.shapes import Attention

if TYPE_CHECKING:
    import pandas as pd  # a third of a second, which predictions from shapes alone need not wait for

# One row a tile: `how` is a configuration ("2x1") or a conventional arm that runs whole operators ("eager", tile 0).
COLUMNS: dict[str, str] = {
    "operator": "str",
    "batch": "int64",
    "position": "int64",
    "how": "str",
    "tile": "int64",
    "median_ns": "int64",
    "q25_ns": "int64",
    "q75_ns": "int64",
    "samples": "int64",
}
LARGEST = 2**53  # beyond, a float64 does not hold every whole number


@dataclass(frozen=True, slots=True)
class TileCosts:
    """Times of one operator's tiles (tiles,), relative half-IQR of their sum, and where they come from.

    ``ns`` is the body's time; loads of weights and of inputs are beside it where a source can tell them apart, else
    they are in it and None here. ``streams``: bodies that take as long as the weights which they load meanwhile.
    ``loads``: bytes of weights ahead of the body and of inputs, as far as they take DRAM bandwidth.
    """

    ns: npt.NDArray[np.int64]
    spread_frac: float
    provenance: Provenance
    weight_ns: npt.NDArray[np.int64] | None = None
    input_ns: npt.NDArray[np.int64] | None = None
    streams: npt.NDArray[np.bool_] | None = None
    loads: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    @property
    def total_ns(self) -> npt.NDArray[np.int64]:
        """Time of each tile alone, its weights loaded with its inputs before it computes."""
        loads = np.zeros_like(self.ns)
        for part in (self.weight_ns, self.input_ns):
            if part is not None:
                loads = np.maximum(loads, part)
        return self.ns + loads


Measured = tuple[npt.NDArray[np.float64], float]  # ns a tile, spread


@dataclass(frozen=True)
class CostTable:
    """A checked benchmark table with COLUMNS."""

    rows: pd.DataFrame
    region_costs: dict[Hashable, object] = field(default_factory=dict, repr=False)  # of ``predict``
    _index: dict[tuple[str, str], dict[int, dict[int, Measured]]] = field(default_factory=dict, repr=False)
    _memo: dict[tuple[str, int, int, str], TileCosts] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_table(self.rows, "the table")
        tiles: dict[tuple[str, str, int, int], list[tuple[int, int]]] = {}
        ordered = self.rows.sort_values("tile")
        columns = (ordered[name].tolist() for name in COLUMNS)
        for operator, batch, position, how, _, median, q25, q75, _ in zip(*columns, strict=True):
            tiles.setdefault((operator, how, batch, position), []).append((median, q75 - q25))
        for (operator, how, batch, position), times in tiles.items():
            ns, widths = np.array(times, np.float64).T
            spread = float(widths.sum() / 2 / ns.sum())
            self._index.setdefault((operator, how), {}).setdefault(batch, {})[position] = (ns, spread)

    @property
    def batches(self) -> list[int]:
        """Measured batches."""
        return sorted(int(b) for b in self.rows["batch"].unique())

    @property
    def kernel_configurations(self) -> list[Configuration]:
        """Configurations that a conventional kernel may take."""
        return self.configurations

    @property
    def configurations(self) -> list[Configuration]:
        """Measured configurations."""
        return sorted(Configuration.parse(how) for how in self.rows["how"].unique() if how[:1].isdigit())

    def tiles(self, operator: Operator, batch: int, position: int, configuration: Configuration) -> TileCosts:
        """Times of the tiles that ``operator`` is cut into under ``configuration``, in tile order."""
        shares = operator_cut(operator, batch, configuration).shares()
        return self._look_up(operator, batch, position, str(configuration), shares)

    def whole(self, operator: Operator, batch: int, position: int, arm: str) -> TileCosts:
        """Time of the whole operator under a conventional arm that runs it as one call."""
        return self._look_up(operator, batch, position, arm, np.ones(1))

    def call_tiles(self, call: Call, batch: int, configuration: Configuration, held: Held | None = None) -> TileCosts:
        """``tiles`` for one call of the program; a worker holds nothing that they depend on."""
        return self.tiles(call.operator, batch, call.position, configuration)

    def _look_up(
        self, operator: Operator, batch: int, position: int, how: str, shares: npt.NDArray[np.float64]
    ) -> TileCosts:
        if not isinstance(operator.shape, Attention):
            position = 0
        key = (operator.name, batch, position, how)
        if key not in self._memo:
            self._memo[key] = self._estimate(operator.name, batch, position, how, shares)
        return self._memo[key]

    def _estimate(
        self, operator: str, batch: int, position: int, how: str, shares: npt.NDArray[np.float64]
    ) -> TileCosts:
        by_batch = self._index.get((operator, how))
        if not by_batch:
            known = sorted({h for name, h in self._index if name == operator})
            have = f"measured as {', '.join(known)}" if known else "not in the table at all"
            raise MeasureError(f"no benchmark of {operator!r} as {how!r} ({have}); `workbench bench` makes one")
        if batch in by_batch:
            ns, spread, provenance = _at_position(by_batch[batch], position)
            if len(ns) != len(shares):
                raise MeasureError(
                    f"{operator!r} at batch {batch} as {how!r}: {len(ns)} tiles were measured, {len(shares)} are "
                    "needed; the table is of another version of the program: run `workbench bench` again"
                )
        else:
            ns, spread, provenance = _between_batches(by_batch, batch, position, shares)
        return TileCosts(np.maximum(1, np.rint(ns)).astype(np.int64), spread, provenance)


def _weights(known: Sequence[int], wanted: int) -> tuple[list[tuple[int, float]], Provenance]:
    """Points of ``known`` and their weights that give a linear estimate at ``wanted``."""
    points = sorted(known)
    if wanted in points:
        return [(wanted, 1.0)], Provenance.MEASURED
    if len(points) == 1:
        return [(points[0], 1.0)], Provenance.EXTRAPOLATED
    upper = min(max(1, int(np.searchsorted(points, wanted))), len(points) - 1)
    low, high = points[upper - 1], points[upper]
    t = (wanted - low) / (high - low)
    inside = points[0] < wanted < points[-1]
    return [(low, 1 - t), (high, t)], Provenance.INTERPOLATED if inside else Provenance.EXTRAPOLATED


def _at_position(by_position: dict[int, Measured], position: int) -> tuple[npt.NDArray[np.float64], float, Provenance]:
    parts, provenance = _weights(list(by_position), position)
    ns = sum((weight * by_position[point][0] for point, weight in parts), np.zeros(1))
    return np.asarray(ns), max(by_position[point][1] for point, _ in parts), provenance


def _between_batches(
    by_batch: dict[int, dict[int, Measured]], batch: int, position: int, shares: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], float, Provenance]:
    """The operator's total at a batch that was not measured, spread over its tiles by their volume."""
    parts, provenance = _weights(list(by_batch), batch)
    if provenance is Provenance.EXTRAPOLATED and len(by_batch) == 1:
        only = next(iter(by_batch))
        parts = [(only, batch / only)]  # one batch known: in proportion to the batch
    total, spread, provenances = 0.0, 0.0, {provenance}
    for point, weight in parts:
        ns, its_spread, its = _at_position(by_batch[point], position)
        total += weight * float(ns.sum())
        spread, provenances = max(spread, its_spread), provenances | {its}
    return shares * max(total, 1.0), spread, worst(provenances)


def check_table(rows: pd.DataFrame, where: str) -> None:
    """Raise MeasureError unless ``rows`` has COLUMNS with positive, ordered times, and each operator's tiles once."""
    import pandas as pd

    missing = [name for name in COLUMNS if name not in rows.columns]
    if missing:
        raise MeasureError(f"{where} lacks {', '.join(missing)}; it has {', '.join(map(str, rows.columns))}")
    if rows.empty:
        raise MeasureError(f"{where} has no rows")
    if rows[list(COLUMNS)].isna().any(axis=None):
        column = next(name for name in COLUMNS if rows[name].isna().any())
        raise MeasureError(f"{where}: a value of {column} is missing; leave the row out instead")
    for name, kind in COLUMNS.items():
        if kind == "str" and not pd.api.types.is_string_dtype(rows[name]):
            raise MeasureError(f"{where}: column {name} holds {rows[name].dtype}; text is needed")
        if kind == "int64" and not pd.api.types.is_integer_dtype(rows[name]):
            raise MeasureError(f"{where}: column {name} holds {rows[name].dtype}; whole numbers are needed")
        if kind == "int64" and (rows[name] >= LARGEST).any():
            raise MeasureError(f"{where}: column {name} holds {rows[name].max()}; whole numbers below 2^53 are needed")
    bad = rows[(rows["q25_ns"] < 1) | (rows["q25_ns"] > rows["median_ns"]) | (rows["q75_ns"] < rows["median_ns"])]
    if len(bad):
        first = bad.iloc[0]
        raise MeasureError(
            f"{where}: {first['operator']} has times {first['q25_ns']}, {first['median_ns']}, {first['q75_ns']} ns; "
            "they must be positive and in order (25 %, median, 75 %)"
        )
    if (rows["batch"] < 1).any() or (rows["position"] < 0).any() or (rows["tile"] < 0).any():
        raise MeasureError(f"{where}: batch must be at least 1, position and tile at least 0")
    if (rows["samples"] < 1).any():
        raise MeasureError(f"{where}: samples must be at least 1; leave a row without samples out")
    twice = rows.duplicated(["operator", "batch", "position", "how", "tile"])
    if twice.any():
        first = rows[twice].iloc[0]
        raise MeasureError(f"{where}: {first['operator']} tile {first['tile']} at batch {first['batch']} stands twice")
    _check_tiles(rows, where)
    for how in rows["how"].unique():
        if how[:1].isdigit():
            try:
                Configuration.parse(how)
            except CompositionError as error:
                raise MeasureError(f"{where}: column how: {error}") from None


def _check_tiles(rows: pd.DataFrame, where: str) -> None:
    """Raise MeasureError unless tiles are numbered 0, 1, 2, … and are as many at every position."""
    tiles: dict[tuple[str, str, int], dict[int, list[int]]] = {}
    columns = (rows[name].tolist() for name in ("operator", "how", "batch", "position", "tile"))
    for operator, how, batch, position, tile in zip(*columns, strict=True):
        tiles.setdefault((operator, how, batch), {}).setdefault(position, []).append(tile)
    for (operator, how, batch), by_position in tiles.items():
        what = f"{where}: {operator} at batch {batch} as {how} has"
        for found in by_position.values():
            if len(found) != max(found) + 1:
                raise MeasureError(f"{what} {len(found)} tiles, numbered up to {max(found)}; they must be 0, 1, 2, …")
        counts = sorted({len(found) for found in by_position.values()})
        if len(counts) > 1:
            raise MeasureError(
                f"{what} {counts[0]} tiles at one position and {counts[-1]} at another; the table is of two versions "
                "of the program"
            )


def read_table(path: Path) -> CostTable:
    """A benchmark table from CSV; MeasureError in one line if it is not one."""
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            rows = pd.read_csv(path, index_col=False, low_memory=False)
    except OSError as error:
        raise MeasureError(f"{path}: cannot be read ({error.strerror}); `workbench bench` writes one") from error
    except (ValueError, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise MeasureError(f"{path}: not a CSV table ({reason}); `workbench bench` writes one") from error
    check_table(rows, str(path))
    return CostTable(rows.astype({k: v for k, v in COLUMNS.items() if v == "int64"}))
