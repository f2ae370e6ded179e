"""Commands about files: inspect, figures, lab."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from workbench.cli import options
from workbench.errors import WorkbenchError

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FIGURES = Path(__file__).resolve().parents[2] / "figures"


def add_commands(commands: Any) -> None:
    """Add this module's commands."""
    command = commands.add_parser("inspect", help="what a profile holds, and what is wrong with it")
    command.add_argument("file", metavar="FILE")
    command.set_defaults(run=inspect)

    command = commands.add_parser("figures", help="remake every figure, each with its table and trail")
    command.add_argument("--device", default="", help="a store (default: the one that ships)")
    command.add_argument("--out", default=str(FIGURES), help="folder (default: the project's figures/)")
    command.set_defaults(run=figures)

    command = commands.add_parser("lab", help="open JupyterLab on the explore notebook")
    command.add_argument("--no-open", action="store_true", help="print the address instead of opening a browser")
    command.add_argument("--port", type=options.positive, default=8888)
    command.set_defaults(run=lab)


def inspect(arguments: argparse.Namespace) -> int:
    """Print the load report; 1 if it has warnings."""
    from workbench.profiles import load

    report = load(arguments.file).report
    data = report.to_json()
    options.show(arguments, data, str(report))
    return 1 if data["warnings"] else 0


def figures(arguments: argparse.Namespace) -> int:
    """Remake the figures."""
    from workbench.figures import make_all
    from workbench.measure.store import shipped_store

    folder = options.store_of(arguments.device) if arguments.device else shipped_store()
    made = make_all(Path(arguments.out), folder)
    options.show(arguments, {"files": [str(path) for path in made]}, "\n".join(map(str, made)))
    return 0


def lab(arguments: argparse.Namespace) -> int:
    """Run JupyterLab on loopback with its token on, until it is stopped."""
    notebook = NOTEBOOKS / "01_explore.ipynb"
    if not notebook.exists():
        raise WorkbenchError(f"{notebook} is not there; `workbench lab` runs in a clone of the project")
    # The announcement popup asks a server on the network for news; it is off by a setting, not by a flag.
    settings = Path(tempfile.mkdtemp(prefix="workbench-lab-"))
    news = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    (settings / "overrides.json").write_text(json.dumps(news))
    command = [
        sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={arguments.port}",
        f"--ServerApp.root_dir={NOTEBOOKS}", f"--LabApp.app_settings_dir={settings}",
        f"--LabApp.default_url=/lab/tree/{notebook.name}",
    ]  # fmt: skip
    if arguments.no_open:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    os.execv(sys.executable, command)
