"""What a person sees of charts and tables: no label over another, none cut, nothing out of reach on a phone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from tests.e2e.test_pages import browser, collected, draw_all, pages, site, visit

__all__ = ["browser", "collected", "site", "visit"]
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PHONE_PX = 390
LABELS = """() => [...document.querySelectorAll("[data-state=ready]")].map((box) => {
  const chart = echarts.getInstanceByDom(box);
  const texts = chart.getZr().storage.getDisplayList(true)
    .filter((shape) => shape.type === "tspan" && !shape.ignore && !shape.invisible && String(shape.style.text).trim());
  const [width, height] = [chart.getWidth(), chart.getHeight()];
  return {title: box.dataset.chartTitle, width, height, labels: texts.map((shape) => {
    const place = shape.getBoundingRect().clone();
    const slanted = Boolean(shape.transform && Math.abs(shape.transform[1]) > 0.01);
    if (shape.transform) place.applyTransform(shape.transform);
    return {text: shape.style.text, slanted, box: [place.x, place.y, place.x + place.width, place.y + place.height]};
  })};
})"""
TOUCH_PX = 2.0


def overlaps(labels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of level labels that cover each other; slanted ones lie beside each other though their boxes cross."""
    level = [label for label in labels if not label["slanted"]]
    return [
        (one["text"], other["text"])
        for at, one in enumerate(level)
        for other in level[at + 1 :]
        if all(
            min(one["box"][end + 2], other["box"][end + 2]) - max(one["box"][end], other["box"][end]) > TOUCH_PX
            for end in (0, 1)
        )
    ]


def cut(chart: dict[str, Any]) -> list[str]:
    """Labels that reach beyond their chart."""
    return [
        label["text"]
        for label in chart["labels"]
        if min(label["box"]) < -TOUCH_PX
        or label["box"][2] > chart["width"] + TOUCH_PX
        or label["box"][3] > chart["height"] + TOUCH_PX
    ]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
@pytest.mark.parametrize("width", [PHONE_PX, 820])
def test_labels_of_charts_neither_cover_each_other_nor_are_cut(site, visit, width, language):
    tab = visit(language=language, width=width)
    seen = 0
    for page in pages(site):
        tab.goto(site["url"] + page)
        draw_all(tab)
        for chart in tab.evaluate(LABELS):
            seen += 1
            assert overlaps(chart["labels"]) == [], (page, chart["title"])
            assert cut(chart) == [], (page, chart["title"])
    assert seen > 10


def test_labels_find_their_places_anew_when_the_window_becomes_narrow_and_on_paper(site, visit):
    tab = visit(language="en", width=1440)
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    draw_all(tab)
    tab.set_viewport_size({"width": PHONE_PX, "height": 900})
    tab.wait_for_function(
        f"() => echarts.getInstanceByDom(document.querySelector('[data-state=ready]')).getWidth() < {PHONE_PX}"
    )
    tab.wait_for_function("() => document.getAnimations().length === 0")
    for chart in tab.evaluate(LABELS):
        assert overlaps(chart["labels"]) == [], chart["title"]
    (waterfall,) = [chart for chart in tab.evaluate(LABELS) if chart["title"].startswith("From the ideal")]
    assert any(label["slanted"] for label in waterfall["labels"])
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    for chart in tab.evaluate(LABELS):
        assert chart["width"] <= 690 and overlaps(chart["labels"]) == [], chart["title"]


def test_a_printed_list_has_all_its_columns_on_the_paper(site, visit):
    tab = visit(width=718)
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 718
    assert tab.locator("thead", has_text="Checklist").is_visible()


def test_numbers_of_tiles_stand_on_one_line_whatever_their_labels_take(site, visit):
    tab = visit(width=1100)
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    rows: dict[int, set[int]] = {}
    for top, value in tab.evaluate(
        "[...document.querySelectorAll('.tile')].map((tile) =>"
        " [tile.getBoundingClientRect().top, tile.querySelector('.value').getBoundingClientRect().top])"
    ):
        rows.setdefault(round(top), set()).add(round(value))
    assert all(len(places) == 1 for places in rows.values()), rows


LONG = "gpt-moe-175b_" + "very_long_run_name_without_any_break_" * 5


@pytest.mark.parametrize("width", [PHONE_PX, 1440])
def test_names_of_two_hundred_letters_push_nothing_off_the_page(site, visit, width):
    site["project"].name = "很长的中文名称" * 12
    site["project"].save()
    for capture in site["captures"]:
        capture.run.name, capture.run.model_name, capture.run.tags = LONG[:200], "m" * 90, ["标签" * 15]
        capture.run.save()
    connections.close_all()  # Playwright's loop has one of its own, which nobody else closes
    tab = visit(width=width)
    for page in pages(site):
        tab.goto(site["url"] + page)
        draw_all(tab)
        wider = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, page


def test_huge_numbers_of_an_axis_are_written_with_their_power_of_ten(site, visit):
    run = site["captures"][0].run
    run.steps.filter(step__gt=50).update(loss=1.2e29)
    connections.close_all()
    tab = visit()
    tab.goto(f"{site['url']}/runs/{run.pk}/")
    draw_all(tab)
    (loss,) = [chart for chart in tab.evaluate(LABELS) if chart["title"] == "Loss"]
    assert "1.2e29" in [label["text"] for label in loss["labels"]]


def test_a_violation_is_read_and_assigned_on_a_phone_without_scrolling_aside(site, visit):
    tab = visit(width=PHONE_PX)
    tab.goto(f"{site['url']}/violations/")
    row = tab.locator("tbody tr").first
    assert "NPU-hours" in row.locator("[data-label='NPU-hours']").evaluate(
        "(cell) => getComputedStyle(cell, '::before').content"
    )
    for part in (row.locator("td.name").nth(1), row.locator("button", has_text="Assign")):
        place = part.bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= PHONE_PX
    row.locator("button", has_text="Assign").click()
    assert tab.locator("#assign").is_visible()


def test_alerts_and_violations_are_within_reach_of_a_thumb(site, visit):
    tab = visit(width=PHONE_PX)
    for address in ("/violations/", "/alerts/"):
        place = tab.locator(f".nav > a[href='{address}']").bounding_box()
        assert place["x"] + place["width"] <= PHONE_PX, address


def test_a_table_that_goes_on_beyond_its_edge_has_a_shadow_there(site, visit):
    tab = visit(width=PHONE_PX)
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    draw_all(tab)
    style = tab.locator("#operators .tablewrap").evaluate("(box) => getComputedStyle(box).backgroundAttachment")
    assert style.replace(" ", "") == "local,local,scroll,scroll"


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_menu_never_lies_under_the_search(site, visit, language):
    site["project"].name = "A project with quite a long name"
    site["project"].save()
    connections.close_all()
    tab = visit(language=language)
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    for width in (1440, 1211, 1210, 1000, 820, 781):
        tab.set_viewport_size({"width": width, "height": 900})
        last, search = (tab.locator(part).bounding_box() for part in (".nav > a >> nth=-1", ".top .search"))
        below = last["y"] >= search["y"] + search["height"]
        assert below or last["x"] + last["width"] <= search["x"], width
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
