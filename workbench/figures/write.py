"""Figures to files: the plotted numbers, a page, pictures, and a trail of what they were made from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import kaleido
import pandas as pd
import plotly.graph_objects as go
from kaleido.errors import ChromeNotFoundError

from workbench.errors import WorkbenchError

PDF_HATCHED_BARS = 150  # a figure of more bars loses its hatches in PDF, where every hatched bar is a bitmap of 15 kB
PICTURES = ("pdf", "svg", "png")
WIDTH_PX, SCALE = 1000, 2
NO_BROWSER = (
    "no Chromium or Chrome was found, so PDF, SVG and PNG are left out: install one (apt-get install chromium, or "
    "plotly_get_chrome), or name it in BROWSER_PATH"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ROOT = Path(__file__).resolve().parents[2]

# Without these the page carries a link to plotly's site and a button that would send the data there.
PAGE = {"displaylogo": False, "plotlyServerURL": "", "responsive": True}


def say_on_stderr(line: str) -> None:
    """One line for a person, where it does not mix with output."""
    print(line, file=sys.stderr)


def browser() -> str | None:
    """The browser that draws pictures: $BROWSER_PATH, or a Chromium or Chrome on the PATH; None if there is none."""
    if given := os.environ.get("BROWSER_PATH"):
        return given if Path(given).exists() else None
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def trail(made_by: str, inputs: Iterable[Path], command: str, base: Path = ROOT) -> dict[str, object]:
    """What a figure was made from: the function, the SHA-256 of every input file, the command that remakes it.

    Files are named from the project's root where they lie in it, else from ``base``, else by their last part.
    """
    hashes = {_name_of(path, base): f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in inputs}
    return {"made_by": made_by, "inputs": hashes, "command": command}


def _name_of(path: Path, base: Path) -> str:
    resolved = path.resolve()
    for root in (ROOT, base.resolve()):
        if resolved.is_relative_to(root):
            return resolved.relative_to(root).as_posix()
    return path.name


def write(
    figure: go.Figure,
    table: pd.DataFrame,
    folder: Path,
    name: str,
    trail: dict[str, object],
    say: Callable[[str], None] = say_on_stderr,
) -> list[Path]:
    """Write ``name``.csv (the plotted numbers), .html, .json (the trail) and, with a browser, .pdf, .svg and .png.

    The page is whole with the ``plotly.min.js`` written beside it; nothing is fetched from a network. Without a browser
    ``say`` gets one line on how to have the pictures. Returns the paths written.
    """
    paths = write_page(figure, table, folder, name, trail)
    return paths + write_pictures([(figure, folder / name)], say)


def write_page(figure: go.Figure, table: pd.DataFrame, folder: Path, name: str, trail: dict[str, object]) -> list[Path]:
    """Write the table, the page and the trail of one figure."""
    if not name or Path(name).name != name:
        raise WorkbenchError(f"figure name {name!r}: expected a plain file name without a folder or suffix")
    folder.mkdir(parents=True, exist_ok=True)
    csv, page, json_path = (folder / f"{name}.{suffix}" for suffix in ("csv", "html", "json"))
    csv.write_text(table.to_csv(index=False, lineterminator="\n"), encoding="utf-8", newline="\n")
    figure.write_html(page, include_plotlyjs="directory", config=PAGE, div_id=name, include_mathjax=False)
    json_path.write_text(json.dumps(trail, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    return [csv, page, json_path]


def write_pictures(figures: Iterable[tuple[go.Figure, Path]], say: Callable[[str], None] = say_on_stderr) -> list[Path]:
    """Write each figure's PICTURES beside its path without a suffix, all with one start of the browser."""
    path = browser()
    if path is None and "BROWSER_PATH" in os.environ:
        say(NO_BROWSER)
        return []
    written: list[Path] = []

    def jobs() -> Iterator[dict[str, Any]]:
        for figure, stem in figures:
            for kind in PICTURES:
                target = stem.with_name(f"{stem.name}.{kind}")
                size = {"width": WIDTH_PX, "height": figure.layout.height, "scale": SCALE if kind == "png" else 1}
                written.append(target)
                yield {
                    "fig": _for_pdf(figure) if kind == "pdf" else figure,
                    "path": str(target),
                    "opts": {"format": kind, **size},
                }

    try:
        # mathjax=False: kaleido would load it from a network
        found = {"path": path} if path else {}  # kaleido looks in a few places more
        kaleido.write_fig_from_object_sync(jobs(), kopts={"mathjax": False, **found}, cancel_on_error=True)
    except ChromeNotFoundError:
        say(NO_BROWSER)
        return []
    except (RuntimeError, OSError) as error:
        say(f"PDF, SVG and PNG could not be drawn with {path} ({type(error).__name__}: {str(error).splitlines()[0]})")
        return [target for target in written if target.exists()]
    return written


def _for_pdf(figure: go.Figure) -> go.Figure:
    """The figure without the hatches that would make its PDF many megabytes."""
    bars = [trace for trace in figure.data if trace.type == "bar"]
    if sum(len(trace.x) for trace in bars) <= PDF_HATCHED_BARS:
        return figure
    lean = go.Figure(figure)
    lean.update_traces(marker_pattern_shape="", selector={"type": "bar"})
    return lean
