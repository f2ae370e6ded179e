"""Tile bodies: their arithmetic in Triton's interpreter against torch, and what a compiler makes of their unions."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bodies import compiling, filling
from workbench.bodies.compiling import Rung
from workbench.bodies.table import (
    BUILDS,
    COLUMNS,
    KINDS,
    PATH,
    SHAPES,
    Key,
    Reading,
    read_table,
    read_versions,
    readings,
    write_table,
)
from workbench.cli import main
from workbench.cli.bodies import needed
from workbench.errors import MeasureError

TRITON = importlib.util.find_spec("triton") is not None
with_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed: pip install '.[triton]'")
CASES = (
    "gemv", "gemv_gated", "gemv_called", "gemv_split", "mma_rows_64", "mma_rows_128_gated", "mma_split_gated",
    "attention_step", "attention_step_in_parts", "attention_prefill", "attention_window_in_parts",
    "convolution_with_snake", "convolution_with_history", "convolution_transposed", "convolution_to_one_channel",
    "depthwise_step_with_state", "depthwise_chunk", "scan", "gather", "greatest",
    "decoder_step", "decoder_step_in_two_blocks", "decoder_step_of_called_bodies",
)  # fmt: skip
TOLERANCE = 2e-5  # fp32 sums of up to a hundred products of order one


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    """Largest difference to torch of each case; one process, since Triton is told to interpret when it is imported."""
    command = [sys.executable, "-W", "ignore", "-m", "oracles.bodies_interpreted", "1"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@with_triton
@pytest.mark.parametrize("case", CASES)
def test_a_body_computes_what_torch_does(differences: dict[str, float], case: str) -> None:
    assert differences[case] <= TOLERANCE


@with_triton
def test_every_case_of_the_interpreter_is_looked_at(differences: dict[str, float]) -> None:
    assert set(differences) == set(CASES)


def ship() -> dict[Key, Reading]:
    return dict(readings())


def test_the_table_holds_every_body_alone_on_every_rung_and_unions_that_shipped_models_may_need() -> None:
    """Unions are compiled as time allows; those that lack are priced from their bodies (``cost.resources.builds``)."""
    unions = needed()
    assert frozenset(KINDS) - {"scan"} in unions
    alone = {frozenset({kind}) for kind in KINDS}
    assert alone <= unions
    assert filling.missing(ship(), alone) == []
    assert {kinds for *_, kinds in ship()} <= unions
    assert len(filling.missing(ship(), unions)) < len(filling.missing([], unions))


def test_the_table_is_of_the_bodies_that_ship() -> None:
    """Comments and docstrings may change without it; whoever changes what runs compiles again."""
    assert read_versions()["source"] == compiling.source_digest()


def test_a_kernel_needs_the_most_shared_memory_of_its_bodies() -> None:
    table = ship()
    for (arch, build, warps, shape, kinds), reading in table.items():
        alone = [table[arch, build, warps, shape, frozenset({kind})] for kind in kinds]
        assert reading.shared_bytes >= max(single.shared_bytes for single in alone)
        assert reading.code_bytes >= max(single.code_bytes for single in alone)


def test_what_the_builds_are_for_holds_of_their_registers() -> None:
    for (_, build, warps, _, _), reading in ship().items():
        assert reading.warps == warps
        assert reading.registers * warps * 32 <= compiling.REGISTERS_PER_SM
        if build == "capped":
            assert 2 * reading.registers * warps * 32 <= compiling.REGISTERS_PER_SM


# CALLED


@with_triton
@pytest.mark.parametrize(
    ("arch", "rung", "kinds"),
    [
        ("sm_90", Rung("inlined", 8, "large"), frozenset({"lookup"})),
        ("sm_80", Rung("capped", 8, "large"), frozenset({"depthwise"})),
        ("sm_120", Rung("called", 8, "large"), frozenset({"gemv"})),
    ],
)
def test_compiling_again_gives_the_row_that_ships(tmp_path: Path, arch: str, rung: Rung, kinds: frozenset[str]) -> None:
    shipped, here = read_versions(), compiling.versions([arch])
    if differ := {tool: version for tool, version in here.items() if shipped[tool] != version}:
        pytest.skip(f"the table was made with other versions: {differ}")
    key, reading = compiling.row(arch, rung, kinds, tmp_path)
    assert reading == readings()[key]
    assert len(list(tmp_path.iterdir())) == 1


@with_triton
def test_a_kept_reading_is_not_compiled_again_and_a_broken_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[frozenset[str]] = []

    def compile_instead(arch: str, rung: Rung, kinds: frozenset[str]) -> Reading:
        made.append(kinds)
        return Reading(len(made), 2, 3, 4, 5, rung.warps)

    monkeypatch.setattr(compiling, "_compile", compile_instead)
    rung, kinds = Rung("called", 4, "small"), frozenset({"scan", "gemv"})
    first = compiling.read("sm_90", rung, kinds, tmp_path)
    assert compiling.read("sm_90", rung, kinds, tmp_path) == first
    assert made == [kinds]
    compiling.read("sm_80", rung, kinds, tmp_path)
    compiling.read("sm_90", Rung("called", 8, "small"), kinds, tmp_path)
    assert len(made) == 3
    for path in tmp_path.iterdir():
        path.write_text("{")
    assert compiling.read("sm_90", rung, kinds, tmp_path).registers == 4


@with_triton
def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_compile", lambda arch, rung, kinds: Reading(1, 2, 3, 4, 5, rung.warps))
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="compiled bodies are not kept"):
        found = compiling.read("sm_90", Rung("called", 4, "small"), frozenset({"gemv"}), tmp_path / "file" / "folder")
    assert found == Reading(1, 2, 3, 4, 5, 4)


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda: None)


@pytest.mark.usefixtures("without_triton")
def test_without_triton_the_command_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bodies", "--compile", "--table", str(tmp_path / "bodies.csv")]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error == "workbench bodies: compiling bodies needs Triton, which is not installed: pip install '.[triton]'\n"


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bodies", "--arch", "sm_90", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["versions"] == read_versions()
    mine = {key: reading for key, reading in readings().items() if key[0] == "sm_90"}
    assert len(data["rows"]) == len(mine)
    for row in data["rows"]:
        key = (row["arch"], row["build"], row["warps"], row["shape"], frozenset(row["bodies"].split("+")))
        assert mine[key].registers == row["registers"]
    assert main(["bodies", "--arch", "sm_90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(mine) + 2
    assert lines[0].split() == list(COLUMNS)
    assert lines[-1].startswith("compiled, not run: ")
    assert main(["bodies", "--arch", "sm_12"]) == 2
    assert "no row is of 'sm_12'; there are sm_120, sm_80, sm_90" in capsys.readouterr().err


@with_triton
def test_an_interrupted_table_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third row is interrupted: the first two are in the file, and are not made again."""
    made: list[str] = []

    def read(arch: str, rung: Rung, kinds: frozenset[str], folder: Path | None = None) -> Reading:
        if len(made) == 2 and "interrupted" not in made:
            made.append("interrupted")
            raise KeyboardInterrupt
        made.append(f"{arch} {rung.build} {rung.warps}")
        return Reading(7, 2, 3, 4, 5, rung.warps)

    monkeypatch.setattr(compiling, "read", read)
    path, unions = tmp_path / "bodies.csv", [frozenset({"scan"})]
    with pytest.raises(KeyboardInterrupt):
        filling.fill(path, unions, ["sm_90"])
    assert len(read_table(path)) == 2
    ticks: list[int] = []
    assert filling.fill(path, unions, ["sm_90"], lambda total, key: ticks.append(total)) == 2
    assert ticks == [2, 2, 2]
    table = read_table(path)
    assert {key[1:4] for key in table} == {(r.build, r.warps, r.shape) for r in filling.rungs("sm_90")}
    assert sorted(made) == sorted({*made})
    path.with_suffix(".json").write_text('{"triton": "0"}')
    assert filling.fill(path, unions, ["sm_90"]) == 4, "rows of other versions are made anew"


keys = st.tuples(
    st.sampled_from(["sm_80", "sm_90", "sm_120"]), st.sampled_from(BUILDS), st.sampled_from([4, 8]),
    st.sampled_from(SHAPES), st.frozensets(st.sampled_from(KINDS), min_size=1),
)  # fmt: skip
counts = st.tuples(st.integers(1, 255), *[st.integers(0, 10**8)] * 4)


@given(st.dictionaries(keys, counts, max_size=20))
def test_a_table_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[Key, tuple[int, ...]]
) -> None:
    path = tmp_path_factory.mktemp("table") / "bodies.csv"
    table = {key: Reading(*row, key[2]) for key, row in rows.items()}  # type: ignore[call-arg]
    write_table(path, table, {"triton": "1"})
    assert read_table(path) == table
    assert read_versions(path) == {"triton": "1"}


HEADER = ",".join(COLUMNS)
GOOD = "sm_90,called,8,large,attention+gemv,128,38912,28,16,25600"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the first row must name the columns arch,build,warps"),
        ("a,b\n", "the first row must name the columns"),
        (f"{HEADER}\n{GOOD},1\n", "row 2: 11 fields; 10 are needed"),
        (f"{HEADER}\n{GOOD}\n{GOOD}\n", "row 3: sm_90 called 8 large attention+gemv is there twice"),
        (f"{HEADER}\n{GOOD.replace('gemv', 'gem')}\n", "row 2: no body is called 'gem'; there are gemv, mma_rows_64"),
        (f"{HEADER}\n{GOOD.replace('attention+gemv', 'gemv+attention')}\n", "must be sorted, each once"),
        (f"{HEADER}\n{GOOD.replace('attention', 'gemv')}\n", "must be sorted, each once"),
        (f"{HEADER}\n{GOOD.replace('called', 'calld')}\n", "sm_90 calld large is not sm_NN, one of inlined"),
        (f"{HEADER}\n{GOOD.replace('sm_90', 'gfx90')}\n", "gfx90 called large is not sm_NN"),
        (f"{HEADER}\n{GOOD.replace('large', 'vast')}\n", "one of large, small"),
        (f"{HEADER}\n{GOOD.replace('38912', '-1')}\n", "shared_bytes is '-1'; a whole number is needed"),
        (f"{HEADER}\n{GOOD.replace('25600', '1e3')}\n", "code_bytes is '1e3'"),
        (f"{HEADER}\n{GOOD.replace(',128,', ',256,')}\n", "8 warps of 256 registers; a power of 2 to 32, and 1 to 255"),
        (f"{HEADER}\n{GOOD.replace(',8,', ',7,')}\n", "7 warps of 128 registers"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bodies.csv"
    path.write_text(text)
    with pytest.raises(MeasureError, match=str(path)) as caught:
        read_table(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_good_row_is_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "bodies.csv"
    path.write_text(f"{HEADER}\n{GOOD}\n")
    assert read_table(path) == {
        ("sm_90", "called", 8, "large", frozenset({"gemv", "attention"})): Reading(128, 38912, 28, 16, 25600, 8)
    }


def write_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("make", "says"), [(Path.mkdir, "cannot be read"), (write_bytes, "not a table of text"), (Path.exists, "cannot be")]
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    make(tmp_path / "bodies.csv")
    with pytest.raises(MeasureError, match=says):
        read_table(tmp_path / "bodies.csv")


@pytest.mark.parametrize("text", ["[", "[]", '{"triton": 3}'])
def test_versions_that_are_no_versions_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bodies.json").write_text(text)
    with pytest.raises(MeasureError, match=r"bodies\.json"):
        read_versions(tmp_path / "bodies.csv")


def test_reading_the_table_needs_no_compiler_and_little_else() -> None:
    code = "import sys, workbench.bodies.table as t; t.readings(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"triton", "torch", "numpy", "pandas"} & set(loaded)
    assert PATH.exists()


def test_the_digest_of_a_source_sees_what_runs_and_nothing_else() -> None:
    def tokens(source: str) -> list[str]:
        return list(compiling._tokens(source))

    plain = 'def f(x):\n    """Says."""\n    return x + "a"\n'
    said = '# of\ndef f(x):\n    """Says\n\n    more."""\n\n    return x + "a"  # why\n'
    assert tokens(plain) == tokens(said)
    assert tokens(plain) != tokens(plain.replace('"a"', '"b"'))
    assert tokens(plain) != tokens(plain.replace("+", "-"))
    assert tokens("if a:\n    b\nc\n") != tokens("if a:\n    b\n    c\n")


def test_code_is_what_lies_in_sections_of_instructions() -> None:
    """An ELF file made by hand: two sections of instructions, one of data and that of names."""
    names = b"\0.text.a\0.nv.info\0.text.b\0.names\0"
    sections = [(1, 100), (9, 1000), (18, 28), (26, len(names))]
    table = 64 + len(names)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HHH", header, 0x3A, 64, 4, 3)
    body = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, 64, size).ljust(64, b"\0") for name, size in sections)
    assert compiling.code_bytes(bytes(header) + names + body) == 128


@with_triton
def test_a_tile_names_words_that_a_record_has() -> None:
    code = (
        "from workbench.bodies.launch import Queue\nfrom workbench.errors import GraphError\nq = Queue()\n"
        "for words in ({'rows': 1}, {'row': 2**31}):\n"
        "    try:\n        q.tile('gemv', **words)\n    except GraphError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "a record has no word 'rows'; names are those of `bodies.words`"
    assert second == "word row is 2147483648; 32 bits hold it if it is given in units of 8"
