"""The project's own files: they agree with each other, and nothing of the machine they were written on is in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
DIRECT = [Requirement(line) for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]


def tracked() -> dict[str, str]:
    """Text files that git tracks, or would: by path, with their content."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    found = {}
    for name in filter(None, names):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            found[name] = content.decode()
    return found


def test_conda_installs_the_same_packages_as_pip() -> None:
    """A YAML reader would be one more dependency for one list: the lines below ``- pip:`` are read as they stand."""
    lines = (ROOT / "environment.yml").read_text().splitlines()
    pip = [line.strip().removeprefix("- ") for line in lines[lines.index("  - pip:") + 1 :]]
    assert [line for line in pip if not line.startswith("-")] == PROJECT["dependencies"]
    assert [line for line in pip if line.startswith("-")] == ["-c constraints.txt", "-e ."]
    assert f"  - python{PROJECT['requires-python']}" in lines
    assert f"name: {PROJECT['name']}" in lines


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in CONSTRAINTS}
    for requirement in DIRECT:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} against {pin}"


@pytest.mark.parametrize("line", CONSTRAINTS)
def test_a_pin_is_one_exact_version_from_any_index(line: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line), "name==version and nothing else"
    assert "+" not in line
    assert "://" not in line
    assert "@" not in line


def test_the_tests_run_on_the_versions_that_are_pinned() -> None:
    """Not where someone installed without constraints; there this says so."""
    pins = {canonicalize_name(line.partition("==")[0]): Version(line.partition("==")[2]) for line in CONSTRAINTS}
    here = {name: Version(metadata.version(name)) for name in (requirement.name for requirement in DIRECT)}
    differ = {name: str(v) for name, v in here.items() if Version(v.public) != pins[canonicalize_name(name)]}
    if differ:
        pytest.skip(f"installed without constraints.txt: {differ}")


# Written so that this file does not hold them itself.
HOME_PATHS = re.compile(r"/(?:ho[m]e|User[s])/\w+|/ro[o]t/|/wor[k]/(?:main|shared)\b")


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    here = [path for path in (str(ROOT), str(Path.home()), sys.prefix) if path not in ("/", "/usr", "/usr/local")]
    own = re.compile("|".join(rf"(?<![\w.-]){re.escape(path)}/" for path in here))
    for name, text in tracked().items():
        hit = HOME_PATHS.search(text) or own.search(text)
        assert hit is None, f"{name}: {hit}"


def index_hosts() -> set[str]:
    """Hosts of the package indexes that this machine is set up to use, other than the public one."""
    settings = [value for key, value in os.environ.items() if "INDEX" in key.upper() or "REGISTRY" in key.upper()]
    pip = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    settings += re.findall(r"https?://[^\s'\"]+", pip.stdout)
    hosts = {urlsplit(url).hostname for setting in settings for url in re.findall(r"https?://[^\s'\"]+", setting)}
    return {host for host in hosts if host} - {"pypi.org", "localhost", "127.0.0.1"}


def test_no_file_names_a_package_index() -> None:
    hosts = {*index_hosts(), "files.pythonhosted" + ".org", "download.pytorch" + ".org"}
    options = re.compile(r"--(?:extra-)?index[-]url|--find[-]links|--trusted[-]host")
    for name, text in tracked().items():
        assert not [host for host in hosts if host in text], name
        assert options.search(text) is None, name


def test_ci_runs_the_tests_that_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().splitlines()[-1] == "make test"
    makefile = (ROOT / "Makefile").read_text()
    test = makefile.partition("\ntest: ")[2].partition("\n\n")[0]
    assert all(f"$(BIN)/{tool}" in test for tool in ("ruff check .", "ruff format --check .", "mypy", "pytest"))
    assert "-c constraints.txt" in makefile


def test_the_readme_says_how_to_open_it_and_how_to_test_it() -> None:
    text = (ROOT / "README.md").read_text()
    if not text.strip():
        pytest.skip("README.md is not written yet")
    assert "make lab" in text
    assert "make test" in text
