"""Three people at work in a real browser: a lead, an engineer with a slow step, and someone who migrates a model.

The runs are those of the demo with four layers in place of thirty-two, sent by the real agent with config, log and
alignment record; the lead's second project holds a real dump.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from dashboard.demo.files import write_chapter
from dashboard.demo.story import STORY
from tests.e2e.conftest import Tab, Upload
from tests.live import LiveProduct, wait_for

pytestmark = pytest.mark.browser
SCORES = {"llama2-7b-02": 3, "llama2-7b-05": 6, "llama2-7b-10": 8}
"""Passed items of three stations of the migration, as told by what each chapter changes."""
MARK_REFERENCE = """
import sys, django
django.setup()
from dashboard.runs.models import Run
Run.objects.filter(key=sys.argv[1]).update(is_reference=True)
"""
Send = Callable[[str], int]


@pytest.fixture
def send(upload: Upload, live_product: LiveProduct, tmp_path: Path) -> Send:
    """Uploads the run of one chapter (again and it changes nothing); how many checklist items pass."""

    def of_chapter(key: str) -> int:
        chapter = next(one for one in STORY if one.key == key)
        small = replace(chapter, changes={**chapter.changes, "layers": 4})
        folder = tmp_path / key
        folder.mkdir()
        files = write_chapter(folder, small)
        report = upload(
            files.dumps, "--run", chapter.name, "--run-key", key, "--config", str(files.config), "--log", str(files.log)
        )
        if key == STORY[0].key:
            live_product.python(MARK_REFERENCE, key)
        return int(report["checklist"]["passed"])

    return of_chapter


def row_of(tab: Tab, run: str) -> str:
    return tab.text(f"tbody tr:has(a:text-is('{run}'))")


def test_the_migrator_works_the_checklist_from_three_items_to_eight(live_product: LiveProduct, tab: Tab, send: Send):
    send(STORY[0].key)
    for key, passed in SCORES.items():
        chapter = next(one for one in STORY if one.key == key)
        assert send(key) == passed
        tab.open(f"/projects/{live_product.project}/runs/?q={key}")
        assert f"{passed}/" in row_of(tab, chapter.name)
        tab.click(f"a:text-is('{chapter.name}')")
        tab.locator("a[href^='/captures/']").first.click()
        tab.wait_for_url("**/captures/*/")
        tab.draw_all()
        assert tab.locator("#checklist .check").count() == 8
        assert tab.locator("#checklist .check.pass").count() == passed
        # Each item that does not pass says what to do about it.
        for item in tab.locator("#checklist .check:not(.pass)").all():
            assert len(item.inner_text()) > 60
    assert tab.locator("#checklist .check.fail").count() == 0


def press(tab: Tab, *keys: str) -> None:
    for key in keys:
        tab.keyboard.press(key)


def focused(tab: Tab) -> str:
    return str(tab.evaluate("document.activeElement.innerText"))


def test_the_migrator_works_the_checklist_with_keys_alone(live_product: LiveProduct, chromium: Any, send: Send):
    send(STORY[0].key)
    for key in SCORES:
        send(key)
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB")
    tab = Tab(context, live_product.url)
    tab.goto(f"{live_product.url}/accounts/login/")
    assert tab.evaluate("document.activeElement.name") == "login"
    tab.keyboard.type(live_product.username)
    press(tab, "Tab")
    tab.keyboard.type(live_product.password)
    press(tab, "Enter")
    tab.wait_for_selector("header.top")

    seen = []
    for key, passed in SCORES.items():
        chapter = next(one for one in STORY if one.key == key)
        # From anywhere to the run that is being worked on, and on to its capture.
        press(tab, "/")
        tab.keyboard.type(key)
        tab.wait_for_selector(f"[data-suggestions] a:has-text('{key}')")
        press(tab, "ArrowDown", "Enter")
        tab.wait_for_url("**/runs/*/")
        assert tab.text("h1") == chapter.name
        press(tab, "j", "Enter")
        tab.wait_for_url("**/captures/*/")
        tab.draw_all()
        # Down the eight items: what each is, how it stands, and its evidence where it does not pass.
        statuses = []
        for _item in range(8):
            press(tab, "j")
            assert focused(tab) == "Evidence and rule"
            item = tab.locator(".check:has(summary:focus)")
            statuses.append("pass" if "pass" in (item.get_attribute("class") or "").split() else "other")
            if statuses[-1] == "other":
                press(tab, "Enter")
                assert item.locator("details").get_attribute("open") is not None
                # It says what to do, and stands where it can be read.
                assert item.locator(".advice").is_visible()
        assert statuses.count("pass") == passed
        seen.append(tab.page.url)
    assert len(set(seen)) == 3

    # What was won between the first and the last station: two rows of the list, chosen and compared.
    press(tab, "g", "r")
    tab.wait_for_url(f"**/projects/{live_product.project}/runs/")
    for key in (*SCORES,)[::2]:
        chapter = next(one for one in STORY if one.key == key)
        press(tab, "j")
        for _row in range(30):
            if focused(tab) == chapter.name:
                break
            press(tab, "k" if key == "llama2-7b-10" else "j")
        assert focused(tab) == chapter.name
        press(tab, "x")
    assert tab.text("[data-selected]") == "2"
    press(tab, "c")
    tab.wait_for_url("**/compare/?captures=*")
    tab.draw_all()
    # A is the earlier run. Of the five items that it does not pass nobody had compared layer outputs; four had failed.
    assert tab.text("h1").startswith("Step time fell by")
    assert (tab.locator(".badge:text-is('fixed')").count(), tab.locator(".badge:text-is('changed')").count()) == (4, 1)
    press(tab, "?")
    assert tab.locator("#keys").is_visible()
    press(tab, "Escape")
    assert tab.complaints == []
    context.close()


def test_the_engineer_goes_from_the_alert_to_the_casts_of_one_layer(tab: Tab, send: Send):
    before, after = STORY[-2], STORY[-1]
    send(before.key)
    send(after.key)
    alert = tab.locator("article:has(h2:has-text('Cast'))", has_text=after.name).first
    # A worker judges the capture once its report is there: look again until it has.
    wait_for(lambda: tab.open("/alerts/") and alert.count(), "the alert")
    assert "3.1" in alert.inner_text() and "7.4" in alert.inner_text()
    alert.locator("h2 a").click()
    tab.wait_for_url("**/captures/*/")
    tab.draw_all()
    assert "7.4 %" in tab.text(".tile:has-text('Cast share')")
    tab.locator("a:text-is('Layer 1')").first.click()
    tab.wait_for_url("**/ranks/0/?*layer=1*")
    tab.fill("#kernels input[name=q]", "Cast")
    tab.press("#kernels input[name=q]", "Enter")
    tab.wait_for_url("**q=Cast*")
    rows = [" ".join(row.split()) for row in tab.locator("#kernels tbody tr").all_inner_texts()]
    assert all("Cast" in row and "1 · " in row for row in rows)
    # 2 steps x 2 passes x (q and k to float32 and back around rotary, which the upgrade brought; two norms likewise).
    assert len(rows) == 2 * 2 * (4 + 4)


@pytest.mark.real
def test_the_lead_finds_the_worst_project_and_answers_for_a_violation(
    live_product: LiveProduct, tab: Tab, send: Send, dumps: Path
):
    send(STORY[1].key)
    tab.open("/projects/new/")
    tab.fill("main [name=name]", "Vision")
    tab.fill("main [name=slug]", "vision")
    tab.click("main button.primary")
    tab.wait_for_selector("h1")

    # The worst comes first: unfused attention of the port costs more NPU time than anything else.
    tab.open("/")
    worst = tab.locator("section.card", has_text="Worst open violations").locator("tbody tr").first
    assert "GPT" in worst.inner_text()
    tab.click("a[href='/violations/'] >> nth=0")
    tab.wait_for_url("**/violations/")
    first = tab.locator("tbody tr").first
    title, run = first.locator("td.name a").nth(0).inner_text(), first.locator("td.name a").nth(1).inner_text()
    open_rows = tab.locator("tbody tr").count()
    first.locator("button", has_text="Waive").click()
    until = date.today() + timedelta(days=14)
    tab.fill("#waive [name=reason]", "fused attention is merged next week")
    tab.fill("#waive [name=expires]", until.isoformat())
    tab.click("#waive button.primary")
    tab.wait_for_selector(".messages")
    assert tab.locator("tbody tr").count() == open_rows - 1

    tab.open("/violations/?waived=1")
    waived = tab.locator("tbody tr", has_text=title).filter(has_text=run)
    assert live_product.username in waived.inner_text()
    assert "fused attention is merged next week" in waived.inner_text()
    assert str(until.year) in waived.inner_text()
    waived.locator("button", has_text="Open again").click()
    tab.wait_for_selector(".messages")
    tab.open("/violations/")
    assert tab.locator("tbody tr").count() == open_rows


def test_an_archive_dropped_on_the_upload_page_becomes_a_capture(live_product: LiveProduct, tab: Tab, tmp_path: Path):
    files = write_chapter(tmp_path, replace(STORY[9], changes={**STORY[9].changes, "layers": 2}))
    archive = tmp_path / "dump.zip"
    with ZipFile(archive, "w") as packed:
        for path in sorted(files.dumps.rglob("*")):
            packed.write(path, path.relative_to(files.dumps))
    tab.open(f"/projects/{live_product.project}/upload/")
    tab.fill("[name=run]", "from-the-browser")
    tab.set_input_files("[name=config]", files.config)
    drop_file(tab, "[data-drop]", archive)
    assert "dump.zip" in tab.text("[data-chosen]")
    tab.click("[data-upload] button[type=submit]")
    link = tab.locator("[data-list] a[href^='/captures/']")
    link.wait_for()
    link.click()
    tab.wait_for_url("**/captures/*/")
    address = tab.page.url

    def judged() -> bool:
        return bool(tab.open(address).locator("#checklist .check").count())

    wait_for(judged, "the analysis of the archive's dump", 120)
    assert "from-the-browser" in tab.text("h1")


def drop_file(tab: Tab, selector: str, path: Path) -> None:
    """Drops a file from this machine on an element, as a hand with a mouse would."""
    import base64

    data = base64.b64encode(path.read_bytes()).decode()
    transfer = tab.evaluate_handle(
        """([data, name]) => {
          const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], name, { type: "application/zip" }));
          return transfer;
        }""",
        [data, path.name],
    )
    for event in ("dragenter", "dragover", "drop"):
        tab.dispatch_event(selector, event, {"dataTransfer": transfer})
