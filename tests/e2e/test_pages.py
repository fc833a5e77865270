"""Every page in a real browser: it draws its charts, obeys the CSP, fits a phone, and axe finds nothing serious."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.alerts.models import Channel
from tests.dashboard.host_data import fill_hosts
from tests.dashboard.page_data import capture_of, filled_project, write_kernels
from tests.factories import make_project, make_user

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
DEADLINE_MS = 60_000
PHONE_PX = 390
DOORS = (
    "/accounts/login/", "/accounts/signup/", "/accounts/password/reset/", "/accounts/password/reset/key/abc-def/",
    "/accounts/3rdparty/login/error/", "/nothing-here/",
)  # fmt: skip
"""Pages that need nobody signed in."""
CHARTS_DONE = """async () => {
  const boxes = [...document.querySelectorAll("[data-chart-url]")];
  for (const box of boxes) { box.scrollIntoView(); await new Promise((done) => setTimeout(done, 60)); }
  scrollTo(0, 0);
  return boxes.every((box) => ["ready", "empty"].includes(box.dataset.state));
}"""


def refuse(reason: str) -> None:
    """Skip; in CI a missing browser or library is a failure."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def collected() -> None:
    """Static files where WhiteNoise looks when the server starts."""
    from django.core.management import call_command

    call_command("collectstatic", interactive=False, verbosity=0)


@pytest.fixture
def site(
    collected: None,
    live_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    tmp_path: Path,
    staged_report: dict[str, Any],
) -> dict[str, Any]:
    # Playwright keeps an event loop in this thread; Django would take the fixtures' queries for async ones.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    user = make_user("alice")
    project, captures = filled_project(user)
    fill_hosts(captures[0].run, captures[1].run)
    channel = Channel.objects.create(project=project, name="lead", url="mailto://u:p@mail.example.com?to=x@example.com")
    empty = make_project("empty", owner=user, name="Nothing yet")
    settings.DATA_ROOT = tmp_path
    write_kernels(captures[2].dumps.get(rank=0))
    staged = capture_of(staged_report, make_project("staged", owner=user, name="Stages and experts"))
    found = {"url": live_server.url, "project": project, "captures": captures, "empty": empty, "channel": channel}
    return {**found, "staged": staged}


@pytest.fixture
def browser(site: dict[str, Any]) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        refuse("no Chromium here")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, site: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """A signed-in tab; `complaints` of it collects what the console and the page's code report."""
    tabs: list[Any] = []

    def open_tab(theme: str = "light", language: str = "en", width: int = 1440) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.add_cookies([{"name": "django_language", "value": language, "url": site["url"]}])
        tab = context.new_page()
        tab.set_default_timeout(DEADLINE_MS)
        tab.complaints = []
        tab.on("console", lambda line: tab.complaints.append(line.text) if line.type == "error" else None)
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.goto(f"{site['url']}/accounts/login/")
        tab.fill("[name=login]", "alice")
        tab.fill("[name=password]", "correct horse battery")
        tab.click("main button.primary")
        tab.wait_for_selector("header.top")
        tabs.append(tab)
        return tab

    yield open_tab
    # A request that is still answered would hold the database that is removed next.
    for tab in tabs:
        tab.wait_for_load_state("networkidle")
        tab.context.close()


def pages(site: dict[str, Any]) -> list[str]:
    slug, capture = site["project"].slug, site["captures"][0]
    ids = ",".join(str(row.pk) for row in site["captures"])
    return [
        "/",
        f"/projects/{slug}/runs/?mode=graph",
        f"/projects/{slug}/trends/",
        f"/projects/{slug}/upload/",
        f"/projects/{slug}/settings/",
        f"/projects/{slug}/hosts/",
        f"/runs/{capture.run_id}/",
        f"/captures/{capture.pk}/",
        f"/captures/{capture.pk}/ranks/",
        f"/captures/{capture.pk}/ranks/compare/",
        f"/captures/{capture.pk}/ranks/0/",
        f"/compare/?captures={ids}",
        f"/captures/{capture.pk}/operators/?by=shape",
        f"/captures/{site['staged'].pk}/",
        f"/captures/{site['staged'].pk}/ranks/",
        f"/projects/{slug}/rules/",
        f"/projects/{slug}/channels/",
        f"/projects/{slug}/channels/{site['channel'].pk}/weekly/",
        "/projects/new/",
        "/account/",
        "/violations/",
        "/cost/?days=365",
        f"/captures/{capture.pk}/ranks/compare/",
        "/search/?q=Llama",
        "/alerts/",
    ]


def bare_pages(site: dict[str, Any]) -> list[str]:
    """Pages with nothing to show: a project without runs, searches that find nothing, what is not there."""
    empty = site["empty"].slug
    return [
        f"/projects/{empty}/runs/",
        f"/projects/{empty}/trends/",
        f"/projects/{empty}/hosts/",
        f"/projects/{site['project'].slug}/runs/?q=nothing-is-called-this",
        "/compare/",
        "/violations/?waived=1",
        "/search/",
        "/search/?q=nothing-is-called-this",
        "/runs/99999999/",
    ]


def draw_all(tab: Any) -> None:
    """Scroll every chart into view until each is drawn."""
    for _attempt in range(200):
        if tab.evaluate(CHARTS_DONE):
            return
        tab.wait_for_timeout(100)
    pytest.fail(f"charts of {tab.url} were not drawn")


def test_pages_draw_their_charts_without_a_complaint(site, visit):
    tab = visit()
    for page in pages(site):
        tab.goto(site["url"] + page)
        draw_all(tab)
        assert tab.complaints == [], page
        failed = tab.locator("[data-state=empty]", has_text="could not be loaded").count()
        assert failed == 0, page


@pytest.mark.parametrize(
    ("theme", "language"), [("light", "en"), ("dark", "en"), ("light", "zh-hans"), ("dark", "zh-hans")]
)
def test_axe_finds_nothing_serious(site, visit, theme, language):
    if not AXE.exists():
        refuse("axe-core is not installed; npm ci brings it")
    tab = visit(theme, language)
    source = AXE.read_text(encoding="utf-8")
    for page in [*pages(site), *bare_pages(site)]:
        tab.goto(site["url"] + page)
        draw_all(tab)
        tab.evaluate(source)
        for width in (1440, PHONE_PX):
            tab.set_viewport_size({"width": width, "height": 900})
            assert serious_faults(tab) == [], (page, width)
        tab.set_viewport_size({"width": 1440, "height": 900})


def serious_faults(tab: Any) -> list[tuple[str, str]]:
    """What axe, which is on the page, finds there that is serious: its rule and where."""
    result = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (found["id"], found["nodes"][0]["html"][:200])
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(
    ("theme", "language"), [("light", "en"), ("dark", "en"), ("light", "zh-hans"), ("dark", "zh-hans")]
)
def test_axe_finds_nothing_serious_before_sign_in(site, browser, theme, language):
    if not AXE.exists():
        refuse("axe-core is not installed; npm ci brings it")
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme)
    context.add_cookies([{"name": "django_language", "value": language, "url": site["url"]}])
    tab = context.new_page()
    for page in DOORS:
        tab.goto(site["url"] + page)
        tab.evaluate(AXE.read_text(encoding="utf-8"))
        for width in (1440, PHONE_PX):
            tab.set_viewport_size({"width": width, "height": 900})
            assert serious_faults(tab) == [], (page, width)
    context.close()


def test_pages_fit_a_phone(site, visit):
    tab = visit(width=390)
    for page in [*pages(site), *bare_pages(site)]:
        tab.goto(site["url"] + page)
        draw_all(tab)
        wider = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, page


def test_the_theme_switch_stays_and_recolours_charts(site, visit):
    tab = visit("light")
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    draw_all(tab)
    tab.click("[data-theme-switch]")
    assert tab.get_attribute("html", "data-theme") == "dark"
    tab.reload()
    assert tab.get_attribute("html", "data-theme") == "dark"
    assert tab.complaints == []


def test_a_chart_turns_into_a_table_and_back(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    draw_all(tab)
    tools = tab.locator("section.card", has_text="Steps of this rank").locator("[data-chart-tools] button").first
    tools.click()
    assert tab.locator(".chart-table").inner_text().split()[-4:] == ["100", "µs", "300", "µs"]
    tools.click()
    assert tab.locator(".chart-table").count() == 0


def click_in(tab, chart: str, place: str) -> None:
    """Click where a chart has drawn a value, given as ECharts takes it."""
    box = tab.locator(chart).bounding_box()
    x, y = tab.evaluate(
        f"echarts.getInstanceByDom(document.querySelector({chart!r})).convertToPixel({{seriesIndex: 0}}, {place})"
    )
    tab.mouse.click(box["x"] + x, box["y"] + y)


def test_a_cell_of_the_heat_map_leads_to_the_kernels_of_its_layer_and_block(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    draw_all(tab)
    tab.locator("#heat").scroll_into_view_if_needed()
    tab.wait_for_timeout(500)
    click_in(tab, "#heat", "[1, 1]")
    tab.wait_for_url("**/ranks/0/?layer=1&block=attention_core#kernels")


def test_a_point_of_a_trend_leads_to_its_capture(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/trends/?metric=step_time_ns")
    draw_all(tab)
    tab.wait_for_timeout(500)
    oldest = site["captures"][0]
    value = tab.evaluate(
        "echarts.getInstanceByDom(document.querySelector('.chart.tall')).getOption().series[0].data[0].value"
    )
    click_in(tab, ".chart.tall", f"[0, {value}]")
    tab.wait_for_url(f"**/captures/{oldest.pk}/")


def test_config_and_environment_are_searched_and_copied(site, visit):
    tab = visit()
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.goto(f"{site['url']}/runs/{site['captures'][0].run_id}/")
    tab.click("[data-copy=config]")
    copied = tab.evaluate("navigator.clipboard.readText()").replace("\u200b", "").split("\n")
    assert copied == ["mode: pynative", "seed: 0"]
    tab.fill("[data-filter-rows=config]", "seed")
    assert tab.locator("#config [data-row]:visible").all_inner_texts() == ["seed: 0\u200b"]
    tab.fill("[data-filter-rows=env]", "hccl")
    assert tab.locator("#env [data-row]:visible").all_inner_texts() == ["environment.HCCL_ALGO=ring0"]


def test_a_chip_takes_its_filter_out_of_the_address(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/?mode=graph&order=mfu")
    shown = tab.locator("tbody tr").count()
    tab.click(".chips.filters a.chip")
    tab.wait_for_url("**/runs/?order=mfu")
    assert tab.locator("tbody tr").count() > shown


def test_two_ticked_runs_are_compared(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    boxes = tab.locator("[data-select]")
    boxes.nth(0).check()
    assert tab.locator("[data-selectbar] button.primary").is_disabled()
    boxes.nth(2).check()
    tab.locator("[data-selectbar] button.primary").click()
    tab.wait_for_url("**/compare/?captures=*")
    # The oldest takes 1 000 us, the newest 800 us; the list shows the newest first, a comparison the oldest.
    assert "fell by 20.0" in tab.locator("h1").inner_text()


def test_a_violation_is_waived_in_a_dialog(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/violations/")
    before = tab.locator("tbody tr").count()
    tab.locator("tbody button", has_text="Waive").first.click()
    tab.fill("#waive [name=reason]", "a new kernel comes next week")
    tab.evaluate(
        "() => { const day = new Date(Date.now() + 864e5 * 7);"
        " document.querySelector('#waive [name=expires]').value = day.toISOString().slice(0, 10); }"
    )
    tab.locator("#waive button.primary").click()
    tab.wait_for_selector(".messages")
    assert tab.locator("tbody tr").count() == before - 1


def test_the_slash_key_leads_to_search(site, visit):
    tab = visit()
    tab.keyboard.press("/")
    tab.keyboard.type("graph")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search/?q=graph")
    assert tab.locator("td.name").count() == 2


def test_keys_lead_to_pages_and_to_the_list_of_keys(site, visit):
    tab = visit()
    tab.goto(f"{site['url']}/projects/{site['project'].slug}/runs/")
    tab.keyboard.press("?")
    assert tab.locator("#keys").is_visible()
    tab.keyboard.press("Escape")
    tab.keyboard.press("g")
    tab.keyboard.press("v")
    tab.wait_for_url("**/violations/")


def test_what_is_found_stands_below_the_search_field_while_one_types(site, visit):
    tab = visit()
    tab.keyboard.press("Control+k")
    tab.keyboard.type("graph")
    tab.wait_for_selector("[data-suggestions] a")
    # Two runs and the line that leads to all that is found.
    assert tab.locator("[data-suggestions] a").count() == 3
    tab.keyboard.press("Escape")
    assert tab.locator("[data-suggestions]").is_hidden()
    tab.keyboard.press("Control+k")
    tab.keyboard.type("graph 1")
    tab.wait_for_function("() => document.querySelectorAll('[data-suggestions]:not([hidden]) a').length === 2")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/runs/{site['captures'][1].run_id}/")
    tab.keyboard.press("/")
    tab.keyboard.type("no such run")
    tab.wait_for_selector("[data-suggestions] p")
    assert tab.locator("[data-suggestions]").inner_text() == "Nothing found"
    tab.keyboard.press("Escape")
    tab.keyboard.press("Tab")
    tab.keyboard.press("]")
    first = tab.locator("main h2").first.inner_text()
    assert tab.evaluate("document.activeElement.innerText") == first
    tab.keyboard.press("]")
    tab.keyboard.press("[")
    assert tab.evaluate("document.activeElement.innerText") == first


def test_keys_of_an_input_method_leave_the_search_field_alone(site, visit):
    tab = visit()
    tab.keyboard.press("/")
    tab.keyboard.type("graph")
    tab.wait_for_selector("[data-suggestions] a")
    field = tab.locator("[data-search]")
    for key in ("ArrowDown", "Escape"):
        field.dispatch_event("keydown", {"key": key, "isComposing": True, "bubbles": True})
    assert tab.locator("[data-suggestions]").is_visible()
    assert tab.evaluate("document.activeElement.matches('[data-search]')")
    field.dispatch_event("keydown", {"key": "ArrowDown", "bubbles": True})
    assert tab.evaluate("document.activeElement.matches('[data-suggestions] a')")


def test_who_is_no_longer_signed_in_is_led_to_the_sign_in_while_typing(site, visit):
    tab = visit()
    tab.context.clear_cookies()
    tab.keyboard.press("/")
    tab.keyboard.type("graph")
    tab.wait_for_url("**/accounts/login/?next=/")


def test_every_chart_that_is_drawn_has_a_table(site, visit):
    tab = visit()
    for page in pages(site):
        tab.goto(site["url"] + page)
        draw_all(tab)
        drawn = tab.locator("[data-state=ready]").count()
        tables = tab.locator("[data-chart-tools] button:first-child").count()
        assert tables == drawn, page


def test_a_page_is_printed_white_with_all_its_charts(site, visit):
    tab = visit("dark")
    tab.goto(f"{site['url']}/captures/{site['captures'][0].pk}/")
    tab.evaluate("window.print = () => { document.body.dataset.printed = document.documentElement.dataset.theme; }")
    tab.keyboard.press("Control+p")
    tab.wait_for_selector("body[data-printed=light]")
    states = tab.evaluate("[...document.querySelectorAll('[data-chart-url]')].map((box) => box.dataset.state)")
    assert states and set(states) <= {"ready", "empty"}
    tab.emulate_media(media="print")
    assert not tab.locator("header.top").is_visible()


def test_operators_are_grouped_anew_and_searched_without_leaving_the_page(site, visit):
    tab = visit()
    capture = site["captures"][2]
    tab.goto(f"{site['url']}/captures/{capture.pk}/?rank=0")
    tab.locator("#operators .seg a", has_text="Type and shape").click()
    tab.wait_for_selector("#operators .opshape")
    assert "2×4 · 4×8" in tab.locator("#operators").inner_text()
    tab.locator("#ops-q").press_sequentially("8×8")
    tab.locator("#operators tbody tr").nth(1).wait_for(state="detached")
    assert tab.locator("#operators tbody tr").count() == 1
    assert tab.locator("#ops-q").input_value() == "8×8"
    assert tab.url.endswith("?rank=0")
