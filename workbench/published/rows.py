"""Published measurements as they ship in ``data/published``: one row a fact, unchanged, from two tables.

The tables name their columns differently (``seq`` or ``stage``; ``source_repo_or_paper`` or ``source``); here they are
one. A value counts as a time where its unit or metric gives one, so that seconds, tokens a second and multiples of real
time are compared alike.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import MeasureError

FOLDER = Path(__file__).resolve().parents[2] / "data" / "published"
TABLES = ("megakernel", "tts")
FIELDS: Mapping[str, Mapping[str, str]] = {
    "megakernel": {
        "batch": "batch",
        "what": "seq",
        "source": "source_repo_or_paper",
        "section": "source_path_or_section",
    },
    "tts": {"batch": "batch_or_concurrency", "what": "stage", "source": "source", "section": "source"},
}
NS = {"us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Row:
    """One published fact; every field as it is printed. ``line`` is its line in the file, the header being 1.

    ``what`` is the table's ``seq`` or ``stage``; ``section`` says where in the source.
    """

    table: str
    line: int
    model: str
    gpu: str
    batch: str
    what: str
    system: str
    kind: str
    metric: str
    value: str
    unit: str
    source: str
    section: str

    @property
    def number(self) -> float | None:
        """The value where it is one number; None for a range."""
        try:
            return float(self.value)
        except ValueError:
            return None

    @property
    def scale(self) -> str:
        """How the value is read: ``time``, ``rate`` (a second), ``xrt`` (audio over wall), ``rtf`` or ``ratio``."""
        unit = self.unit.partition(" ")[0].partition("/")[0]
        metric = self.metric.lower()
        if metric.startswith("rtf") and not metric.startswith("rtfx"):
            return "rtf"
        if metric in ("xrt", "speed_x_realtime", "rtfx"):
            return "xrt"
        if unit in NS:
            return "time"
        if self.unit == "tok/s":
            return "rate"
        return "ratio" if unit == "x" else ""

    @property
    def fact(self) -> tuple[str, ...]:
        """What two rows share that print one fact: size of the model, GPU, batch, and the value in one unit."""
        size = re.search(r"\d+(?:\.\d+)?[BM]\b", self.model)
        gpu = " ".join(re.sub(r"[^a-z0-9]+", " ", self.gpu.lower().replace("dgx spark", "")).split()[:2])
        unit = self.unit.partition(" ")[0].partition("/")[0]
        value = f"{self.number * NS.get(unit, 1.0):.6g}" if self.number is not None else self.value
        return size.group() if size else self.model, gpu, self.batch, self.scale, value


def read_rows(folder: Path = FOLDER) -> list[Row]:
    """Both tables in order; MeasureError names the file, the line and what is wrong."""
    return [row for table in TABLES for row in _read(table, folder / f"{table}.csv")]


def _read(table: str, path: Path) -> list[Row]:
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasureError(f"{path}: cannot be read ({error})") from error
    names = FIELDS[table]
    columns = ["model", "gpu", *names.values(), "system", "kind", "metric", "value", "unit"]
    header = lines[0] if lines else []
    if missing := [column for column in columns if column not in header]:
        raise MeasureError(f"{path}: column {missing[0]!r} is missing; there are {', '.join(header)}")
    rows = []
    for line, fields in enumerate(lines[1:], start=2):
        if len(fields) != len(header):
            raise MeasureError(
                f"{path}, line {line}: {len(fields)} fields under {len(header)} columns; a comma within a field "
                'needs quotes, as in "a, b"'
            )
        entry = dict(zip(header, fields, strict=True))
        own = {name: entry[column] for name, column in names.items()}
        shared = {name: entry[name] for name in ("model", "gpu", "system", "kind", "metric", "value", "unit")}
        rows.append(Row(table=table, line=line, **own, **shared))
    return rows


def duplicates(rows: list[Row]) -> dict[Row, Row]:
    """Rows of a later table whose fact an earlier table has already, with that first row.

    One author's: their sources share a word.
    """
    seen: dict[tuple[str, ...], list[Row]] = {}
    found = {}
    for row in rows:
        alike = seen.setdefault(row.fact, [])
        others = [other for other in alike if other.table != row.table and _words(other) & _words(row)]
        if others:
            found[row] = others[0]
        else:
            alike.append(row)
    return found


def _words(row: Row) -> set[str]:
    return {word for word in re.split(r"[\s/,]+", row.source.lower()) if len(word) > 3} - {"readme", "docs"}
