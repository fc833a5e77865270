"""The run list and trends under real keys and a real mouse."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Tab
from tests.live import LiveProduct, wait_for

pytestmark = pytest.mark.browser
FILL = """
import django
django.setup()
from datetime import UTC, datetime, timedelta
from dashboard.accounts.models import Member, Project, Role, User
from dashboard.runs.models import Capture, Run
project, _ = Project.objects.get_or_create(slug="keys", defaults={"name": "Keys"})
Member.objects.get_or_create(project=project, user=User.objects.get(), defaults={"role": Role.OWNER})
if not project.runs.exists():
    for day in range(12):
        at = datetime(2026, 10, 1, tzinfo=UTC) + timedelta(days=day)
        values = {"mfu": 0.40 if day < 6 else 0.30, "peak_tflops": 300.0, "peak_dtype": "BF16"}
        name = f"Run {day:02}"
        run = Run.objects.create(project=project, key=f"run-{day:02}", name=name, last_capture_at=at, **values)
        Capture.objects.create(run=run, key="step-1", state="ready", captured_at=at, **values)
"""
SHOWN = """() => {
  const chart = echarts.getInstanceByDom(document.querySelector(".chart.tall"));
  const [first, last] = chart.getModel().getComponent("xAxis", 0).axis.scale.getExtent();
  return last - first + 1;
}"""
"""How many captures the chart shows."""


@pytest.fixture
def listed(live_product: LiveProduct) -> str:
    """Address of a list of twelve runs, the newest first."""
    live_product.python(FILL)
    return "/projects/keys/runs/"


def test_keys_walk_the_list_choose_and_compare(tab: Tab, listed: str):
    tab.open(listed)
    for key in ("j", "x", "j", "x"):
        tab.keyboard.press(key)
    assert tab.text("[data-selected]") == "2"
    tab.keyboard.press("c")
    tab.wait_for_url("**/compare/?captures=*")
    assert "Run 11" in tab.text() and "Run 10" in tab.text()
    tab.open(listed)
    for key in ("j", "j", "j", "k", "Enter"):
        tab.keyboard.press(key)
    tab.wait_for_url("**/runs/*/")
    assert tab.text("h1") == "Run 10"


def test_columns_are_chosen_and_kept_in_a_saved_view(tab: Tab, listed: str):
    tab.open(f"{listed}?order=mfu")
    tab.click("summary:has-text('Columns')")
    for name in ("Setup", "Trend"):
        tab.locator(".columns label", has_text=name).locator("input").uncheck()
    tab.click(".columns button")
    tab.wait_for_url("**columns=*")
    heads = tab.locator("thead th").all_inner_texts()
    assert "Setup" not in heads and "Trend" not in heads and "order=mfu" in tab.page.url
    tab.click("button:has-text('Save this view')")
    tab.fill("#view-name", "By MFU")
    tab.click("#save-view .primary")
    tab.wait_for_selector(".views .on:has-text('By MFU')")
    tab.open(listed)
    tab.click(".views a:has-text('By MFU')")
    tab.wait_for_url("**order=mfu*")
    assert tab.locator("thead th").all_inner_texts() == heads
    tab.click("button:has-text('Delete this view')")
    tab.wait_for_selector(".messages")
    assert tab.locator(".views a:has-text('By MFU')").count() == 0


def test_chosen_runs_get_a_tag_that_filters(tab: Tab, listed: str):
    tab.open(listed)
    tab.locator("[data-select]").nth(0).check()
    tab.fill("#new-tag", "nightly")
    tab.click("button:has-text('Add tag')")
    tab.locator("td.name a.badge:has-text('nightly')").click()
    tab.wait_for_url("**tag=nightly*")
    assert tab.locator("tbody tr").count() == 1
    tab.locator("[data-select]").check()
    tab.fill("#new-tag", "nightly")
    tab.click("button:has-text('Remove tag')")
    tab.wait_for_selector("h2:has-text('No run matches')")


def test_dragging_over_a_trend_zooms_and_a_double_click_shows_all(tab: Tab, listed: str):
    tab.open("/projects/keys/trends/?metric=mfu")
    box = tab.locator(".chart.tall").bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + box["width"] * 0.3, middle)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=8)
    tab.mouse.up()
    wait_for(lambda: tab.evaluate(SHOWN) < 6, "the chart to zoom")
    tab.mouse.dblclick(box["x"] + box["width"] * 0.5, middle)
    wait_for(lambda: tab.evaluate(SHOWN) == 12, "the chart to show all")


def test_printing_leaves_out_what_paper_cannot_do(tab: Tab, listed: str):
    tab.open(listed)
    tab.emulate_media(media="print")
    for gone in ("header.top", ".listbar", ".keys", ".views"):
        assert not tab.locator(gone).is_visible(), gone
    assert tab.locator("tbody tr").first.is_visible()
