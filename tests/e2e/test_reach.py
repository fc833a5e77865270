"""Every page by keyboard alone, with large text, at rest, and for those who cannot see it as it was meant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.test_pages import bare_pages, browser, collected, draw_all, pages, site, visit

__all__ = ["browser", "collected", "site", "visit"]
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
MOST_STOPS = 400
REACHABLE = """() => {
  const wanted = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  const shown = [...document.querySelectorAll(wanted)].filter((node) =>
    !node.disabled && node.tabIndex >= 0 && node.checkVisibility({ visibilityProperty: true }));
  shown.forEach((node, index) => { node.dataset.stop = index; });
  return shown.length;
}"""
STOP = """() => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  const place = node.getBoundingClientRect();
  const ringed = [node, node.closest(".search"), node.closest("tr")].some((one) => {
    if (!one) return false;
    const style = getComputedStyle(one);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1)
      || (one.matches(".search") && one.matches(":focus-within"));
  });
  const middle = [place.x + place.width / 2, Math.min(place.y + place.height / 2, place.y + 12)];
  const top = document.elementFromPoint(...middle);
  const bar = document.querySelector("header.top");
  return {stop: node.dataset.stop, html: node.outerHTML.slice(0, 160), ringed,
    inside: place.bottom > 0 && place.top < innerHeight && place.width > 0,
    covered: Boolean(top && bar && bar.contains(top) && !bar.contains(node))};
}"""
NAMELESS = """() => [...document.querySelectorAll("button, a[href], summary, [role=button]")].filter((node) => {
  const name = node.getAttribute("aria-label") || node.innerText || node.textContent || node.title;
  return node.checkVisibility() && !name.trim();
}).map((node) => node.outerHTML.slice(0, 160))"""


def walk(tab: Any) -> tuple[int, list[dict[str, Any]]]:
    """How many things of the page can have the focus, and where Tab stops, each place once."""
    wanted = tab.evaluate(REACHABLE)
    tab.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    stops: dict[str, dict[str, Any]] = {}
    for _press in range(min(wanted, MOST_STOPS) + 3):
        tab.keyboard.press("Tab")
        found = tab.evaluate(STOP)
        if found is None or found["stop"] in stops:
            break
        stops[found["stop"]] = found
    return wanted, list(stops.values())


@pytest.mark.parametrize("width", [1440, 390])
def test_tab_reaches_everything_visibly_and_leaves_it_again(site, visit, width):
    tab = visit(width=width)
    for page in [*pages(site), *bare_pages(site)]:
        tab.goto(site["url"] + page)
        draw_all(tab)
        wanted, stops = walk(tab)
        assert len(stops) >= min(wanted, MOST_STOPS), (page, wanted, len(stops), stops[-1:])
        assert [stop["html"] for stop in stops if not stop["ringed"]] == [], page
        assert [stop["html"] for stop in stops if not stop["inside"]] == [], page
        assert [stop["html"] for stop in stops if stop["covered"]] == [], page
        assert tab.evaluate(NAMELESS) == [], page


def test_the_first_tab_skips_to_the_content(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    tab.keyboard.press("Tab")
    assert tab.evaluate(
        "document.activeElement.matches('.skip') && document.activeElement.getBoundingClientRect().top >= 0"
    )
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("Boolean(document.activeElement.closest('main'))")


def test_escape_closes_menus_dialogs_and_hints_and_gives_the_focus_back(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    summary = tab.locator("details.menu > summary", has_text="Columns")
    summary.focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.locator(".columns").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator(".columns").is_visible()
    assert summary.evaluate("(node) => node === document.activeElement")
    tab.keyboard.press("?")
    tab.keyboard.press("Escape")
    assert not tab.locator("#keys").is_visible()
    help_button = tab.locator("thead .tip > button").first
    help_button.focus()
    assert tab.locator("thead [role=tooltip]").first.is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("thead [role=tooltip]").first.is_visible()


def test_a_lead_comes_from_the_overview_to_what_changed_by_keys_alone(site, visit):
    tab = visit()
    tab.goto(site["url"])
    tab.locator(".project h2 a").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/runs/")
    for key in ("j", "x", "j", "x", "c"):
        tab.keyboard.press(key)
    tab.wait_for_url("**/compare/?captures=*")
    assert "Step time" in tab.locator("h1").inner_text()


def test_an_engineer_comes_from_a_capture_to_a_kernel_by_keys_alone(site, visit):
    tab = visit()
    capture = site["captures"][2]
    tab.goto(f"{site['url']}/captures/{capture.pk}/?rank=0")
    tab.locator("#operators tbody a").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/ranks/0/?type=*")
    assert tab.locator("#kernels tbody tr").count() > 0


# 320 px is what is left of 1 280 at 400 %: WCAG 2.2, 1.4.10. 720 px is 1 440 at 200 %.
@pytest.mark.parametrize("width", [320, 720])
def test_pages_enlarged_need_no_scrolling_aside(site, visit, width):
    tab = visit(width=width)
    for page in [*pages(site), *bare_pages(site)]:
        tab.goto(site["url"] + page)
        draw_all(tab)
        wider = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, page


def test_nothing_moves_for_who_asks_for_rest(site, visit):
    tab = visit()
    tab.emulate_media(reduced_motion="reduce")
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    assert tab.evaluate("document.getAnimations().length") == 0
    draw_all(tab)
    moving = "(box) => echarts.getInstanceByDom(box).getOption().animation"
    assert not tab.evaluate(f"[...document.querySelectorAll('[data-state=ready]')].some({moving})")


def test_all_rows_of_a_page_are_chosen_at_once(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    rows = tab.locator("[data-select]").count()
    every = tab.locator("[data-select-all]")
    every.check()
    assert tab.locator("[data-selected]").inner_text() == str(rows)
    tab.locator("[data-select]").first.uncheck()
    assert every.evaluate("(box) => box.indeterminate") and tab.locator("[data-selected]").inner_text() == str(rows - 1)
    every.check()
    every.uncheck()
    assert not tab.locator("[data-selectbar]").is_visible()
