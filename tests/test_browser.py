"""The explore notebook in a real JupyterLab and a real browser: it shows, it answers, and it asks no other host."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-sync", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
WAIT_MS = 180_000
AT_HOME = {"127.0.0.1", "localhost"}
FITS = """() => [...document.querySelectorAll('.wb-drawing > *')].every(
    drawing => Math.abs(drawing._fullLayout.width - drawing.parentElement.clientWidth) <= 2)"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab on loopback with its token on, on a copy of the notebooks."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium on the PATH: the browser test cannot run")
        pytest.skip("no Chromium on the PATH")
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    news = '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}'
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "overrides.json").write_text(news)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={tmp_path / 'notebooks'}",
        f"--LabApp.app_settings_dir={tmp_path / 'settings'}", f"--LabApp.workspaces_dir={tmp_path / 'workspaces'}",
    ]  # fmt: skip
    folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment = {**os.environ, **folders, "WORKBENCH_STORE": str(tmp_path / "store"), "IPYTHONDIR": str(tmp_path)}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server, tmp_path / "log")
        yield f"http://127.0.0.1:{port}/lab/tree/01_explore.ipynb?token={token}"
    finally:
        server.terminate()
        server.wait(60)


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers."""
    for _ in range(300):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"{address} does not answer: {log.read_text()}")


def test_a_press_on_a_boundary_changes_the_predicted_time(lab: str, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1300, "height": 2400})
        asked: set[str | None] = set()
        page.on("request", lambda request: asked.add(urlsplit(request.url).hostname))
        page.on("websocket", lambda opened: asked.add(urlsplit(opened.url).hostname))
        page.goto(lab, timeout=WAIT_MS)
        page.wait_for_selector("text=| Idle", timeout=WAIT_MS)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_selector("text=composition >> nth=0", timeout=WAIT_MS)
        page.wait_for_function("document.querySelectorAll('.jp-OutputArea-output').length >= 6", timeout=WAIT_MS)
        time_shown = page.locator(".wb-ttfo")
        page.get_by_role("button", name="monolith", exact=True).click()
        page.wait_for_selector("text=/monolith, 1 region/", timeout=WAIT_MS)
        before = time_shown.inner_text()
        assert re.fullmatch(r"[\d,.]+ µs", before)

        page.get_by_role("button", name="frames|codec.embed", exact=True).click()
        page.wait_for_function("t => document.querySelector('.wb-ttfo').innerText != t", arg=before, timeout=WAIT_MS)
        page.wait_for_selector("text=/megakernels, 2 regions/")

        page.get_by_role("button", name="prefill.qkv|prefill.attention", exact=True).click()
        page.wait_for_selector("text=/lies in loop 'prefill.layers', whose back edge is not cut/", timeout=WAIT_MS)
        page.get_by_role("button", name=re.compile("^also cut prefill.embed")).click()
        page.wait_for_selector("text=/megakernels, 5 regions/", timeout=WAIT_MS)
        page.screenshot(path=tmp_path / "explore.png", full_page=True)
        page.wait_for_function(FITS, timeout=30_000)
        browser.close()
    assert {host for host in asked if host} <= AT_HOME
