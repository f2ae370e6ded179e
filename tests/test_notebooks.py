"""Notebooks are thin, stored without outputs, and run from a fresh kernel wherever it is started."""

import ast
from pathlib import Path
from statistics import median

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SECONDS = 300  # a cell's limit on a slow machine; the tour takes less than 90 s altogether on two cores


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_of(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebooks_are_there() -> None:
    assert {"00_tour.ipynb", "01_explore.ipynb"} <= {path.name for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_asks_one_question_and_names_what_goes_in_and_out(path: Path) -> None:
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    title = first.source.splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?")
    assert "**In:**" in first.source
    assert "**Out:**" in first.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_calls_and_does_not_define(path: Path) -> None:
    notebook = read(path)
    cells = code_of(notebook)
    lines = [len(cell.splitlines()) for cell in cells]
    assert len(notebook.cells) <= 25
    assert max(lines) <= 12
    assert median(lines) <= 4
    for cell in cells:
        for node in ast.walk(ast.parse(cell)):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda), cell
            assert not (isinstance(node, ast.Attribute) and node.attr.startswith("_")), cell


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_a_fresh_kernel(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read(path)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    assert not (tmp_path / "data").exists()
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert errors == []
