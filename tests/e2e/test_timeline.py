"""The timeline in a real browser: pan, zoom, search, sums and a link that shows the same view to someone else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest
from django.core.management import call_command

from analysis.dump import find_dumps
from analysis.rank import read_rank
from analysis.store import write_frames
from dashboard.runs.models import Dump
from tests.dashboard.page_data import filled_project
from tests.dumps import write_dump
from tests.e2e.test_pages import AXE, FLAGS, refuse
from tests.factories import make_user

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
FRAMES = "1-0123456789ab"
DEADLINE_MS = 60_000


@pytest.fixture(scope="session")
def collected() -> None:
    """Static files where WhiteNoise looks when the server starts."""
    call_command("collectstatic", interactive=False, verbosity=0)


@pytest.fixture
def step(
    collected: None, live_server: Any, monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path
) -> dict[str, Any]:
    """The step page of a synthetic rank, with the frames that its digest would keep."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    settings.DATA_ROOT = tmp_path / "data"
    truth = write_dump(tmp_path / "dump", steps=2)
    result = read_rank(find_dumps(truth.folder)[0])
    write_frames(tmp_path / "data" / "frames" / FRAMES, result.frames)
    capture = filled_project(make_user("alice"))[1][0]
    Dump.objects.filter(capture=capture, rank=0).update(frames=FRAMES, entry=result.entry, source=result.source)
    kernels = pl.read_parquet(tmp_path / "data" / "frames" / FRAMES / "kernels.parquet")
    return {"url": live_server.url, "path": f"/captures/{capture.pk}/ranks/0/", "kernels": kernels}


@pytest.fixture
def context(step: dict[str, Any]) -> Iterator[Any]:
    """A signed-in browser that may use the clipboard."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        refuse("no Chromium here")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=path, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1440, "height": 1000})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab = context.new_page()
        tab.goto(f"{step['url']}/accounts/login/")
        tab.fill("[name=login]", "alice")
        tab.fill("[name=password]", "correct horse battery")
        tab.click("main button.primary")
        tab.wait_for_selector("header.top")
        tab.close()
        yield context
        chromium.close()


def opened(context: Any, address: str) -> Any:
    """A tab whose timeline is drawn; `complaints` is what the console and the page's code report."""
    tab = context.new_page()
    tab.set_default_timeout(DEADLINE_MS)
    tab.complaints = []
    tab.on("console", lambda line: tab.complaints.append(line.text) if line.type == "error" else None)
    tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
    tab.goto(address)
    drawn(tab)
    return tab


def drawn(tab: Any) -> None:
    tab.wait_for_selector("[data-timeline][data-state=ready]")


def settled(tab: Any, differs_from: str = "") -> str:
    """The view in the address, once it is another than `differs_from`."""
    tab.wait_for_url(lambda url: (found := view_of(url)) != "" and found != differs_from)
    drawn(tab)
    return view_of(tab.url)


def view_of(address: str) -> str:
    return parse_qs(urlsplit(address).fragment).get("t", [""])[0]


def span(view: str) -> int:
    begin, end = map(int, view.split("_"))
    return end - begin


def inked(tab: Any) -> int:
    """How many different colours the canvas shows."""
    return int(
        tab.evaluate(
            """() => { const canvas = document.querySelector("[data-canvas]");
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size; }"""
        )
    )


def test_a_view_is_panned_zoomed_searched_and_shared(context, step):
    tab = opened(context, step["url"] + step["path"])
    assert inked(tab) > 5
    whole = settled(tab)
    canvas = tab.locator("[data-canvas]")
    canvas.hover()
    tab.mouse.wheel(0, -600)
    zoomed = settled(tab, whole)
    assert span(zoomed) < span(whole) / 2

    edge = canvas.bounding_box()
    tab.mouse.move(edge["x"] + 500, edge["y"] + 120)
    tab.mouse.down()
    tab.mouse.move(edge["x"] + 300, edge["y"] + 120, steps=4)
    tab.mouse.up()
    panned = settled(tab, zoomed)
    moved = int(panned.split("_")[0]) - int(zoomed.split("_")[0])
    assert moved == pytest.approx(span(zoomed) * 200 / edge["width"], rel=0.02)

    tab.fill("[data-q]", "flashattention")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("[data-panel]:not([hidden])")
    first = step["kernels"]["step"][0]
    expected = step["kernels"].filter(
        (pl.col("step") == first) & pl.col("name").str.to_lowercase().str.contains("flashattention")
    )
    assert re.search(rf"of {expected.height}$", tab.inner_text("[data-found]"))
    assert "FlashAttentionScore" in tab.inner_text("[data-panel] h3")
    name = tab.inner_text("[data-panel] p")
    found = settled(tab, panned)

    tab.click("[data-link]")
    link = tab.evaluate("navigator.clipboard.readText()")
    other = opened(context, link)
    other.wait_for_selector("[data-panel]:not([hidden])")
    assert view_of(link) == found and settled(other) == found
    assert other.inner_text("[data-panel] p") == name
    assert other.input_value("[data-q]") == "flashattention"
    assert tab.complaints == other.complaints == []


def test_keys_do_what_the_mouse_does(context, step):
    tab = opened(context, step["url"] + step["path"])
    whole = settled(tab)
    tab.focus("[data-canvas]")
    tab.keyboard.press("w")
    zoomed = settled(tab, whole)
    assert span(zoomed) < span(whole)
    tab.keyboard.press("d")
    panned = settled(tab, zoomed)
    assert int(panned.split("_")[0]) > int(zoomed.split("_")[0])
    tab.keyboard.press(".")
    tab.wait_for_selector("[data-panel]:not([hidden])")
    tab.wait_for_url(lambda url: "k=" in url)
    one = tab.url
    tab.keyboard.press(".")
    tab.wait_for_url(lambda url: "k=" in url and url != one)
    tab.keyboard.press("Escape")
    tab.keyboard.press("r")
    tab.wait_for_selector(".tl-sums")
    tab.keyboard.press("f")
    assert span(settled(tab, panned)) == pytest.approx(span(whole), rel=0.01)


def test_a_range_is_summed_and_its_free_time_adds_up(context, step):
    tab = opened(context, step["url"] + step["path"])
    edge = tab.locator("[data-canvas]").bounding_box()
    tab.keyboard.down("Shift")
    tab.mouse.move(edge["x"] + 200, edge["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(edge["x"] + 600, edge["y"] + 80, steps=4)
    tab.mouse.up()
    tab.keyboard.up("Shift")
    tab.wait_for_selector(".tl-sums")
    shares = [float(text) for text in re.findall(r"([\d.]+)\u202f%", tab.inner_text("[data-panel] dl"))]
    assert len(shares) == 3 and sum(shares) == pytest.approx(100, abs=0.2)


def test_a_kernel_of_the_table_is_shown_in_the_timeline(context, step):
    tab = opened(context, f"{step['url']}{step['path']}?q=matmul&order=start")
    link = tab.locator("#kernels tbody a").first
    shown = link.inner_text().lstrip("…")
    link.click()
    tab.wait_for_selector("[data-panel]:not([hidden])")
    assert shown and tab.inner_text("[data-panel] p").endswith(shown)


def test_a_link_is_followed_when_the_view_is_written_to_the_address_just_then(context, step):
    tab = opened(context, f"{step['url']}{step['path']}")
    tab.evaluate("location.hash = '#k=3'; history.replaceState(null, '', '#t=0_100000')")
    tab.wait_for_selector("[data-panel]:not([hidden])")
    tab.wait_for_url(lambda url: "k=3" in url)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_with_a_kernel_open(context, step, theme):
    if not AXE.exists():
        refuse("axe-core is not installed; npm ci brings it")
    tab = opened(context, f"{step['url']}{step['path']}#k=3")
    if theme == "dark":
        tab.click("[data-theme-switch]")
    tab.wait_for_selector("[data-panel]:not([hidden])")
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    result = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (found["id"], found["nodes"][0]["html"][:200])
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
    ]
    assert serious == [] and tab.complaints == []


def test_the_page_fits_a_phone(context, step):
    tab = opened(context, step["url"] + step["path"])
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"{step['url']}{step['path']}?x=1#k=3")
    tab.wait_for_selector("[data-panel]:not([hidden])")
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
