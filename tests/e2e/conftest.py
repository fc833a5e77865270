"""A browser and a running product for the tests that walk through all of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report
from analysis.synthetic import GptSpec, Moe, write_capture
from tests.live import LiveProduct, live_product

__all__ = ["live_product"]
ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
DEADLINE_MS = 60_000
DRAWN = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const boxes = [...document.querySelectorAll("[data-chart-url]")];
  for (const box of boxes) { box.scrollIntoView({block: "center"}); await frame(); await frame(); }
  scrollTo(0, 0);
  return boxes.every((box) => ["ready", "empty"].includes(box.dataset.state));
}"""


class Tab:
    """A signed-in browser tab on the live product; every complaint of its console fails the test that opened it."""

    def __init__(self, context: Any, url: str) -> None:
        self.context, self.url = context, url
        self.complaints: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def sign_in(self, username: str, password: str) -> Tab:
        self.page.goto(f"{self.url}/accounts/login/")
        self.page.fill("[name=login]", username)
        self.page.fill("[name=password]", password)
        self.page.click("main button.primary")
        self.page.wait_for_selector("header.top")
        return self

    def open(self, path: str) -> Tab:
        """Go to a page of the product and wait until its charts are drawn."""
        self.page.goto(path if path.startswith("http") else self.url + path)
        self.draw_all()
        return self

    def draw_all(self) -> None:
        for _attempt in range(300):
            if self.page.evaluate(DRAWN):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"charts of {self.page.url} were not drawn")

    def text(self, selector: str = "main") -> str:
        """What a reader sees there, with one plain space between words and between a number and its unit."""
        return " ".join(self.page.locator(selector).first.inner_text().split())


# One browser for each module: Playwright keeps an event loop in the thread until it is closed.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no Chromium here")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any, live_product: LiveProduct) -> Iterator[Tab]:
    """Signed in as the owner; fails afterwards when the console of any page complained."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB")
    opened = Tab(context, live_product.url).sign_in(live_product.username, live_product.password)
    yield opened
    context.close()
    assert opened.complaints == []


Upload = Callable[..., dict[str, Any]]


@pytest.fixture
def upload(live_product: LiveProduct, tmp_path: Path) -> Upload:
    """Runs the real agent as a process and waits for the analysis; the capture's report."""

    def run_agent(path: Path, *options: str) -> dict[str, Any]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "agents"),
            "STEPSCOPE_SERVER": live_product.url,
            "STEPSCOPE_PROJECT": live_product.project,
            "STEPSCOPE_TOKEN": live_product.token,
            "STEPSCOPE_STATE": str(tmp_path / "agent-state"),
        }
        command = [sys.executable, "-m", "stepscope_agent", "upload", str(path), "--json", "--timeout", "120", *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr}\n{live_product.logs()}"
        return dict(json.loads(done.stdout))

    return run_agent


@pytest.fixture(scope="session")
def staged_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report of a small job on two pipeline stages whose experts are unevenly busy."""
    folder = tmp_path_factory.mktemp("staged")
    moe = Moe(8, 2, 512, uneven=0.9, drawn=True)
    write_capture(folder, GptSpec(layers=4, pp=2, dp=2, ep=2, micro_batches=4, moe=moe), steps=1, run={})
    return build_report(folder)
