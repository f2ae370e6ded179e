"""Imports point one way, down the pipeline that ``workbench/__init__`` draws; heavy packages stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

import workbench

ROOT = Path(workbench.__file__).parent
LAYERS = [
    "errors", "effects", "bodies", "shapes", "program", "models", "compose", "hardware", "gpu", "profiles", "tiles",
    "events", "lower", "cost", "simulate", "uncertainty", "predict", "search", "why", "sensitivity", "pareto",
    "static_shape", "calibrate", "worth", "measure", "compare", "classify", "published", "figures", "widgets", "cli",
]  # fmt: skip
ABOVE = {layer: set(LAYERS[: i + 1]) for i, layer in enumerate(LAYERS)}
ABOVE["models"] = {"errors", "shapes", "program", "models"}
ABOVE["profiles"] = {"errors", "program", "profiles"}
ABOVE["simulate"] = {"errors", "simulate"}
ABOVE["uncertainty"] = {"errors", "uncertainty"}
MODULES = sorted(
    path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__")
)


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Full names of all that a file imports, inside functions and under TYPE_CHECKING too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide where a name comes from"
            assert node.module
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] == "workbench"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_module_has_a_place_in_the_order() -> None:
    assert {layer_of(path) for path in MODULES} == set(LAYERS)


def test_the_package_draws_the_order_that_is_tested() -> None:
    assert workbench.__doc__
    drawn = workbench.__doc__.partition("``tests/test_imports.py``")[2].partition("Importing this package")[0]
    names = [name for name in re.findall(r"``(\w+)``", drawn) if name in LAYERS or (ROOT / f"{name}.py").exists()]
    assert names == LAYERS


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_imports_only_what_is_above_it(path: Path) -> None:
    layer = layer_of(path)
    for name in ours(path):
        other = name.split(".")[1] if "." in name else ""
        if other in LAYERS:
            assert other in ABOVE[layer], f"{named(path)} imports {name}"
        else:
            assert other in ("", "__version__"), f"{named(path)} imports {name}, which has no place in the order"


def test_no_two_modules_import_each_other_even_within_a_package() -> None:
    modules = {".".join(("workbench", *path.relative_to(ROOT).with_suffix("").parts)): path for path in MODULES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, path in modules.items():
        graph.add_edges_from((name, other) for other in ours(path) if other in modules and other != name)
    # a package's front imports its parts; that a part imports its package (its siblings by name) is no cycle
    for name in list(graph.nodes):
        graph.remove_edges_from([(part, name) for part in graph.predecessors(name) if part.startswith(f"{name}.")])
    cycles = list(nx.simple_cycles(graph))
    assert cycles == []


HEAVY = {
    "torch": ("measure/", "models/demo_tts_torch.py", "models/torch_export.py"),
    "plotly": ("figures/", "widgets/"),
    "ipywidgets": ("widgets/",),
    "anywidget": ("widgets/",),
    "IPython": ("widgets/",),
    "numba": ("simulate/kernels.py", "measure/"),
    "llvmlite": ("measure/",),
    "triton": ("bodies/",),
}


@pytest.mark.parametrize("package", HEAVY)
def test_a_heavy_package_is_imported_only_where_it_belongs(package: str) -> None:
    at = [named(path) for path in MODULES if any(name.split(".")[0] == package for name in imported(path))]
    assert [place for place in at if not place.startswith(HEAVY[package])] == []


def modules_after(statement: str) -> set[str]:
    """Names in ``sys.modules`` after a statement in a process of its own."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = modules_after("import workbench")
    assert not loaded & {"torch", "numba", "pandas", "numpy", "plotly", "networkx", "scipy"}
    assert {name for name in loaded if name.startswith("workbench.")} == set()


def test_the_predictor_needs_neither_torch_nor_a_measured_run() -> None:
    loaded = modules_after("import workbench.predict, workbench.search, workbench.classify, workbench.models")
    assert not loaded & {"torch", "numba", "plotly", "ipywidgets"}
    assert not {name for name in loaded if name.startswith("workbench.measure")}


def test_nothing_but_the_measured_device_needs_torch() -> None:
    fronts = ", ".join(f"workbench.{layer}" for layer in LAYERS if layer != "measure")
    assert not modules_after(f"import {fronts}, workbench.models.demo_tts, workbench.simulate.reference") & {"torch"}


def test_errors_are_one_tree_under_one_name() -> None:
    from workbench import errors

    tree = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert all(issubclass(kind, errors.WorkbenchError) for kind in tree.values())
    assert issubclass(errors.WorkbenchError, ValueError)
    assert errors.__doc__
    assert set(re.findall(r"\w+Error\b", errors.__doc__)) - {"ValueError"} == set(tree)
