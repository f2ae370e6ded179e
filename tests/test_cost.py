"""Benchmark tables and device files: numbers between the rows in closed form, and one clear line for every bad file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.compose import Configuration
from workbench.cost import COLUMNS, CostTable, read_table
from workbench.errors import MeasureError
from workbench.hardware import Provenance, read_device, this_machine, to_json, worst
from workbench.program import Operator
from workbench.shapes import Attention, Matmul

DENSE = Operator(name="dense", shape=Matmul(rows=1, inner=8, outer=64), reads=("x",), writes=("y",))
ATTENTION = Operator(
    name="attention", shape=Attention(rows=1, heads=4, kv_heads=2, head_dim=8), reads=("q", "kv"), writes=("a",)
)
TWO = Configuration(2)  # both operators: two tiles of equal volume


def row(operator: str, batch: int, position: int, how: str, tile: int, ns: int, half: int = 0) -> tuple[object, ...]:
    return operator, batch, position, how, tile, ns, ns - half, ns + half, 9


def table(*rows: tuple[object, ...]) -> CostTable:
    return CostTable(pd.DataFrame(list(rows), columns=list(COLUMNS)))


def tiles_of(operator: str, batch: int, position: int, *ns: int, half: int = 0) -> list[tuple[object, ...]]:
    return [row(operator, batch, position, "2x1", tile, each, half) for tile, each in enumerate(ns)]


# -- between the rows --------------------------------------------------------------------------------------------------

POSITIONS = table(*tiles_of("attention", 1, 10, 100, 200), *tiles_of("attention", 1, 20, 300, 600))


@pytest.mark.parametrize(("position", "ns", "provenance"), [
    (10, [100, 200], Provenance.MEASURED),
    (15, [200, 400], Provenance.INTERPOLATED),      # half way
    (12, [140, 280], Provenance.INTERPOLATED),      # a fifth of the way
    (20, [300, 600], Provenance.MEASURED),
    (25, [400, 800], Provenance.EXTRAPOLATED),      # half a step beyond, along the same line
    (8, [60, 120], Provenance.EXTRAPOLATED),        # a fifth of a step before
    (0, [1, 1], Provenance.EXTRAPOLATED),           # the line is below zero there: a tile takes at least 1 ns
])  # fmt: skip
def test_positions_lie_on_the_line_through_their_neighbours(
    position: int, ns: list[int], provenance: Provenance
) -> None:
    costs = POSITIONS.tiles(ATTENTION, 1, position, TWO)
    assert costs.ns.tolist() == ns
    assert costs.provenance is provenance


BATCHES = table(
    *tiles_of("dense", 2, 0, 100, 300), *tiles_of("dense", 6, 0, 500, 700), *tiles_of("dense", 8, 0, 900, 900)
)


@pytest.mark.parametrize(("batch", "ns", "provenance"), [
    (2, [100, 300], Provenance.MEASURED),
    (6, [500, 700], Provenance.MEASURED),
    (4, [400, 400], Provenance.INTERPOLATED),       # totals 400 and 1200: 800, in equal halves as the tiles are equal
    (7, [750, 750], Provenance.INTERPOLATED),       # totals 1200 and 1800: 1500
    (10, [1200, 1200], Provenance.EXTRAPOLATED),    # along the last segment: 1800 + 600
    (1, [100, 100], Provenance.EXTRAPOLATED),       # along the first: 400 - 200
])  # fmt: skip
def test_a_batch_between_others_shares_its_total_over_its_tiles_by_volume(
    batch: int, ns: list[int], provenance: Provenance
) -> None:
    costs = BATCHES.tiles(DENSE, batch, 0, TWO)
    assert costs.ns.tolist() == ns
    assert costs.provenance is provenance


def test_one_known_batch_is_scaled_in_proportion_and_marked() -> None:
    costs = table(*tiles_of("dense", 2, 0, 100, 300)).tiles(DENSE, 5, 0, TWO)
    assert costs.ns.tolist() == [500, 500]
    assert costs.provenance is Provenance.EXTRAPOLATED


def test_one_known_position_serves_all_and_is_marked() -> None:
    costs = table(*tiles_of("attention", 1, 10, 100, 200)).tiles(ATTENTION, 1, 99, TWO)
    assert costs.ns.tolist() == [100, 200]
    assert costs.provenance is Provenance.EXTRAPOLATED


def test_position_and_batch_together_take_the_worse_provenance() -> None:
    made = table(
        *tiles_of("attention", 1, 10, 100, 100), *tiles_of("attention", 1, 20, 200, 200),
        *tiles_of("attention", 3, 10, 300, 300), *tiles_of("attention", 3, 20, 400, 400),
    )  # fmt: skip
    inside = made.tiles(ATTENTION, 2, 15, TWO)
    assert inside.ns.tolist() == [250, 250]  # totals 300 and 700 at position 15
    assert inside.provenance is Provenance.INTERPOLATED
    assert made.tiles(ATTENTION, 2, 30, TWO).provenance is Provenance.EXTRAPOLATED
    assert made.tiles(ATTENTION, 3, 15, TWO).provenance is Provenance.INTERPOLATED


def test_only_attention_depends_on_the_position() -> None:
    made = table(*tiles_of("dense", 1, 0, 100, 300))
    assert made.tiles(DENSE, 1, 77, TWO).ns.tolist() == [100, 300]
    assert made.tiles(DENSE, 1, 77, TWO).provenance is Provenance.MEASURED


def test_unequal_tiles_share_a_total_by_their_volume() -> None:
    wide = Operator(name="dense", shape=Matmul(rows=1, inner=8, outer=48), reads=("x",), writes=("y",))
    costs = table(*tiles_of("dense", 1, 0, 100, 200)).tiles(wide, 4, 0, TWO)  # columns 16 and 32 of 48
    assert costs.ns.tolist() == [400, 800]


def test_a_whole_operator_is_one_time_under_its_arm() -> None:
    made = table(row("dense", 1, 0, "eager", 0, 5000), row("dense", 3, 0, "eager", 0, 9000))
    assert made.whole(DENSE, 1, 5, "eager").ns.tolist() == [5000]
    assert made.whole(DENSE, 2, 5, "eager").ns.tolist() == [7000]


def test_the_spread_is_half_the_interquartile_range_over_the_median_of_the_whole_operator() -> None:
    made = table(*tiles_of("dense", 1, 0, 100, 300, half=20), *tiles_of("dense", 3, 0, 100, 300, half=60))
    assert made.tiles(DENSE, 1, 0, TWO).spread_frac == pytest.approx(40 / 400)
    assert made.tiles(DENSE, 2, 0, TWO).spread_frac == pytest.approx(120 / 400)  # the wider of its neighbours'


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 64), st.integers(1, 10**9), min_size=1, max_size=5), st.integers(1, 100),
    st.integers(1, 4),
)  # fmt: skip
def test_between_measured_batches_an_estimate_lies_between_its_neighbours(
    known: dict[int, int], batch: int, split: int
) -> None:
    made = table(*(row("dense", b, 0, "2x1", tile, ns) for b, ns in known.items() for tile in (0, 1)))
    costs = made.tiles(DENSE, batch, 0, TWO)
    lower = [b for b in known if b <= batch]
    upper = [b for b in known if b >= batch]
    assert (costs.ns >= 1).all()
    assert (costs.provenance is Provenance.MEASURED) == (batch in known)
    assert (costs.provenance is Provenance.EXTRAPOLATED) == (not (lower and upper))
    if lower and upper:
        ends = known[max(lower)], known[min(upper)]
        assert min(ends) - 1 <= costs.ns.mean() <= max(ends) + 1


def test_the_worse_provenance_wins() -> None:
    assert worst({Provenance.MEASURED, Provenance.INTERPOLATED}) is Provenance.INTERPOLATED
    assert worst(set(Provenance)) is Provenance.ASSUMED


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_an_operator_that_was_not_measured_is_named_with_what_there_is() -> None:
    made = table(*tiles_of("dense", 1, 0, 100, 300), row("dense", 1, 0, "eager", 0, 5000))
    with pytest.raises(MeasureError, match=r"no benchmark of 'dense' as '1x1' \(measured as 2x1, eager\); `workbench"):
        made.tiles(DENSE, 1, 0, Configuration(1))
    with pytest.raises(MeasureError, match=r"no benchmark of 'attention' as 'eager' \(not in the table at all\)"):
        made.whole(ATTENTION, 1, 0, "eager")


def test_another_number_of_tiles_than_are_needed_is_refused() -> None:
    made = table(*tiles_of("dense", 1, 0, 100, 300, 500))
    with pytest.raises(
        MeasureError, match="'dense' at batch 1 as '2x1': 3 tiles were measured, 2 are needed; the table is of another"
    ):
        made.tiles(DENSE, 1, 0, TWO)


def test_positions_with_different_numbers_of_tiles_are_refused() -> None:
    with pytest.raises(MeasureError, match="attention at batch 1 as 2x1 has 2 tiles at one position and 3 at another"):
        table(*tiles_of("attention", 1, 10, 100, 200), *tiles_of("attention", 1, 20, 100, 200, 300))


GOOD = pd.DataFrame([row("dense", 1, 0, "2x1", tile, 100 + tile, 5) for tile in (0, 1)], columns=list(COLUMNS))


def changed(column: str, value: object) -> pd.DataFrame:
    """GOOD with another value in its second row."""
    return GOOD.assign(**{column: pd.Series([GOOD[column].iloc[0], value], dtype=object).infer_objects()})


TABLES: dict[str, tuple[pd.DataFrame, str]] = {
    "no column": (GOOD.drop(columns="q25_ns"), "lacks q25_ns; it has operator, batch"),
    "no columns": (pd.DataFrame({"a": [1]}), "lacks operator, batch, position, how, tile, median_ns"),
    "no rows": (GOOD[:0], "has no rows"),
    "missing": (changed("median_ns", None), "a value of median_ns is missing; leave the row out instead"),
    "NaN": (changed("q75_ns", float("nan")), "a value of q75_ns is missing"),
    "name missing": (changed("operator", None), "a value of operator is missing"),
    "fraction": (changed("median_ns", 100.5), "column median_ns holds float64; whole numbers are needed"),
    "infinite": (changed("q75_ns", float("inf")), "column q75_ns holds float64; whole numbers are needed"),
    "text": (changed("batch", "one"), "column batch holds .*; whole numbers are needed"),
    "zero time": (changed("median_ns", 0), "dense has times 96, 0, 106 ns; they must be positive and in order"),
    "negative time": (changed("q25_ns", -5), "dense has times -5, 101, 106 ns; they must be positive and in order"),
    "quartiles crossed": (changed("q25_ns", 102), "dense has times 102, 101, 106 ns"),
    "upper below": (changed("q75_ns", 100), "dense has times 96, 101, 100 ns"),
    "batch 0": (changed("batch", 0), "batch must be at least 1, position and tile at least 0"),
    "position -1": (changed("position", -1), "batch must be at least 1, position and tile at least 0"),
    "tile -1": (changed("tile", -1), "batch must be at least 1, position and tile at least 0"),
    "no samples": (changed("samples", 0), "samples must be at least 1"),
    "twice": (changed("tile", 0), "dense tile 0 at batch 1 stands twice"),
    "tile skipped": (changed("tile", 2), "dense at batch 1 as 2x1 has 2 tiles, numbered up to 2; they must be 0, 1, 2"),
    "operator a number": (GOOD.assign(operator=3), "column operator holds int64; text is needed"),
    "how a number": (GOOD.assign(how=2), "column how holds int64; text is needed"),
    "how half a configuration": (GOOD.assign(how="2x"), "configuration '2x': expected WORKERSxTILES"),
    "huge": (changed("q75_ns", 2**63), "column q75_ns holds .*; whole numbers (below 2.53 )?are needed"),
}


@pytest.mark.parametrize(("frame", "reason"), TABLES.values(), ids=TABLES)
def test_a_bad_table_is_refused_in_memory_and_from_its_file(frame: pd.DataFrame, reason: str, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=reason):
        CostTable(frame)
    path = tmp_path / "bench.csv"
    frame.to_csv(path, index=False)
    with pytest.raises(MeasureError) as refused:
        read_table(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    made = synthetic.table(synthetic.program(1), 1)
    path = tmp_path / "bench.csv"
    made.rows.to_csv(path, index=False)
    again = read_table(path)
    pd.testing.assert_frame_equal(again.rows, made.rows, check_dtype=False)
    assert again.configurations == sorted(synthetic.CONFIGURATIONS)
    assert again.batches == [1]


CSV = GOOD.to_csv(index=False).encode()
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a CSV table"),
    "one newline": (b"\n", "not a CSV table"),
    "binary": (bytes(range(256)), "not a CSV table|lacks"),
    "ragged": (CSV + b"dense,1,0,2x1,7,1,1,1,9,extra,more\n", "not a CSV table"),
    "shifted": (CSV.replace(b"\ndense", b"\n0,dense"), "Length of header or names does not match length of data"),
    "quote": (CSV + b'"dense,1', "not a CSV table|missing"),
    "json": (b'{"operator": 3}', "lacks"),
    "cut": (CSV[:-6], "missing|samples"),
    "nul": (CSV.replace(b"dense", b"\0"), ""),
}


@pytest.mark.parametrize(("content", "reason"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_table_is_refused_in_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    path.write_bytes(content)
    if reason:
        with pytest.raises(MeasureError, match=reason) as refused:
            read_table(path)
        assert "\n" not in str(refused.value)
    else:
        only_measure_error(read_table, path)


def only_measure_error(read: Any, path: Path) -> None:
    """Read a file that may be anything: MeasureError in one line that names it, or an answer."""
    message = str(path)
    try:
        read(path)
    except MeasureError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_measure_errors_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    for whole in (content, CSV + content, CSV[: len(content)] + content):
        path.write_bytes(whole)
        only_measure_error(read_table, path)
    path.write_bytes(content)
    only_measure_error(read_device, path)


cells = st.one_of(
    st.integers(-(2**70), 2**70).map(str), st.floats().map(str), st.text(max_size=5), st.sampled_from(["", "NA", "2x1"])
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(COLUMNS)), st.integers(0, 1), cells), min_size=1, max_size=4))
def test_random_cells_are_refused_as_measure_errors_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, str]]
) -> None:
    frame = GOOD.astype(str)
    for column, at, value in changes:
        frame.loc[at, column] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(frame.to_csv(index=False).encode("utf-8", "surrogatepass"))
    only_measure_error(read_and_use, path)


def read_and_use(path: Path) -> None:
    """What a table that was accepted must then bear."""
    made = read_table(path)
    assert made.batches
    assert all(isinstance(configuration, Configuration) for configuration in made.configurations)
    assert (made.rows["median_ns"] >= 1).all()


# -- devices -----------------------------------------------------------------------------------------------------------

DEVICE = to_json(synthetic.device(3))


def test_a_device_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(DEVICE))
    assert read_device(path) == synthetic.device(3)
    assert read_device(path).arms == ("replay", "eager")


def with_change(at: tuple[str, ...], value: object) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(DEVICE))
    inner = data
    for key in at[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return data


LAUNCH = ("overheads", "replay", "2", "launch_ns")
SPREAD = ("overheads", "replay", "2", "spread_frac")
DEVICES: dict[str, tuple[object, str]] = {
    "null": (None, "not a device file"),
    "list": ([], "not a device file"),
    "number": (7, "not a device file"),
    "text": ("cpu", "not a device file"),
    "empty": ({}, "not a device file, KeyError 'overheads'"),
    "no name": (with_change(("name",), ...), "not a device file, KeyError 'name'"),
    "name number": (with_change(("name",), 3), "name=3 is not text"),
    "no workers": (with_change(("workers",), ...), "KeyError 'workers'"),
    "workers zero": (with_change(("workers",), 0), "workers=0 is not a number of workers"),
    "workers negative": (with_change(("workers",), -2), "workers=-2 is not a number of workers"),
    "workers half": (with_change(("workers",), 2.5), "workers=2.5 is not a number of workers"),
    "workers infinite": (with_change(("workers",), float("inf")), "workers=inf is not a number of workers"),
    "workers bool": (with_change(("workers",), True), "workers=True is not a number of workers"),
    "workers text": (with_change(("workers",), "two"), "workers='two' is not a number of workers"),
    "overheads list": (with_change(("overheads",), []), "not a device file, AttributeError"),
    "arm list": (with_change(("overheads", "replay"), [1]), "not a device file, AttributeError"),
    "workers of an arm": (with_change(("overheads", "replay", "many"), {}), "not a device file, ValueError .*'many'"),
    "entry null": (with_change(("overheads", "replay", "2"), None), "not a device file, TypeError"),
    "no launch": (with_change(LAUNCH, ...), "not a device file, KeyError 'launch_ns'"),
    "launch negative": (with_change(LAUNCH, -1), "launch_ns=-1 is not a count of nanoseconds"),
    "launch real": (with_change(LAUNCH, 1.5), "launch_ns=1.5 is not a count of nanoseconds"),
    "launch bool": (with_change(LAUNCH, True), "launch_ns=True is not a count of nanoseconds"),
    "launch text": (with_change(LAUNCH, "10"), "launch_ns='10' is not a count of nanoseconds"),
    "launch NaN": (with_change(LAUNCH, float("nan")), "launch_ns=nan is not a count of nanoseconds"),
    "launch of 73 years": (with_change(LAUNCH, 2**61), "launch_ns=2305843009213693952 is not a count of nanoseconds"),
    "spread NaN": (with_change(SPREAD, float("nan")), "spread_frac=nan is not a fraction"),
    "spread negative": (with_change(SPREAD, -0.1), "spread_frac=-0.1 is not a fraction"),
    "spread infinite": (with_change(SPREAD, float("inf")), "spread_frac=inf is not a fraction"),
    "spread huge": (with_change(SPREAD, 10**400), "spread_frac=1000.* is not a fraction"),
    "run spread null": (with_change(("run_spread_frac",), None), "run_spread_frac=None is not a fraction"),
    "provenance": (with_change(("overheads", "replay", "2", "provenance"), "guessed"), "'guessed' is not a valid Prov"),
    "provenance null": (with_change(("overheads", "replay", "2", "provenance"), None), "'None' is not a valid Proven"),
    "machine list": (with_change(("machine",), ["x"]), "not a device file, AttributeError"),
}


@pytest.mark.parametrize(("data", "reason"), DEVICES.values(), ids=DEVICES)
def test_a_bad_device_file_is_refused_in_one_line(data: object, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(data))
    with pytest.raises(MeasureError, match=reason) as refused:
        read_device(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 200


def test_files_that_are_not_there_or_not_files_are_refused_in_one_line(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    for read in (read_table, read_device):
        with pytest.raises(MeasureError, match=r"cannot be read \(No such file or directory\); `workbench bench`"):
            read(tmp_path / "nothing")
        with pytest.raises(MeasureError, match=r"cannot be read \(Is a directory\)"):
            read(tmp_path)
        only_measure_error(read, deep)
        only_measure_error(read, Path("a\0b"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ("name",), ("workers",), ("overheads",), ("machine",), ("taken",), ("run_spread_frac",), ("overheads", "replay"),
    ("overheads", "replay", "2"), ("overheads", "megakernel", "1"), LAUNCH, SPREAD,
    ("overheads", "eager", "2", "source"), ("overheads", "eager", "2", "provenance"), ("machine", "cpu"),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), json_values)
def test_wrong_types_in_a_device_file_are_refused_as_measure_errors_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, at: tuple[str, ...], value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "device.json"
    path.write_text(json.dumps(with_change(at, value)))
    only_measure_error(read_device, path)


def test_a_device_says_what_it_has_when_asked_for_more() -> None:
    device = synthetic.device(0)
    with pytest.raises(MeasureError, match="'invented' has no figures for arm 'graph'; it has megakernel, replay, eag"):
        device.overhead("graph", 2)
    with pytest.raises(MeasureError, match="figures for megakernel on 1, 2 workers, not on 3; `workbench bench`"):
        device.overhead("megakernel", 3)


def test_the_machine_at_hand_is_told_by_processor_cores_and_system() -> None:
    machine = this_machine()
    assert set(machine) == {"cpu", "cores", "system"}
    assert int(machine["cores"]) >= 1
    assert all(machine.values())
