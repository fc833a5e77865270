"""Wherever a page names a metric over its numbers, it also tells what the metric means."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from django.test import Client

from dashboard.runs.metrics import METRICS, RANK_METRICS, TERMS
from tests.dashboard.page_data import filled_project
from tests.factories import make_user

pytestmark = pytest.mark.django_db
NAMES = {str(metric.label) for metric in METRICS.values()} | {str(label) for label, _text in TERMS.values()}
NAMES |= {str(label) for label in RANK_METRICS.values()}
VOID = {"meta", "link", "input", "br", "hr", "img", "source", "path", "rect", "circle"}


class Heads(HTMLParser):
    """Heads of columns, tiles, figures and cards: their own words, and whether a definition stands with them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, bool, bool]] = []
        self.found: list[tuple[str, bool]] = []
        self.words: list[str] = []
        self.told = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in VOID:
            return
        css = (given.get("class") or "").split()
        head = (tag == "th" and given.get("scope") != "row") or tag == "h2" or bool({"label", "l"} & set(css))
        tip = given.get("role") == "tooltip"
        if head and not self.inside:
            self.words, self.told = [], False
        self.told = self.told or (tip and bool(self.inside))
        self.open.append((tag, head, tip or tag in ("svg", "button")))

    @property
    def inside(self) -> bool:
        return any(head for _tag, head, _quiet in self.open)

    def handle_endtag(self, tag: str) -> None:
        while self.open and tag not in VOID:
            name, head, _quiet = self.open.pop()
            if head and not self.inside:
                self.found.append((" ".join("".join(self.words).split()), self.told))
            if name == tag:
                return

    def handle_data(self, text: str) -> None:
        if self.inside and not any(quiet for _tag, _head, quiet in self.open):
            self.words.append(text)


def heads(text: str) -> list[tuple[str, bool]]:
    parser = Heads()
    parser.feed(text)
    return parser.found


def test_a_head_without_its_definition_is_noticed():
    text = """<table><thead><tr><th>MFU</th><th><a>Cast share</a><span class="tip"><button>i</button>
      <span role="tooltip">Time in Cast</span></span></th></tr></thead></table>"""
    assert heads(text) == [("MFU", False), ("Cast share", True)]


def test_every_metric_on_every_page_has_its_definition(client: Client):
    alice = make_user("alice")
    project, captures = filled_project(alice)
    client.force_login(alice)
    slug, capture = project.slug, captures[0]
    ids = ",".join(str(row.pk) for row in captures)
    every = "step_time,mfu,hfu,tflops,device_ratio,compute,exposed,cast,movement,memory,recoverable,verdict,checklist"
    pages = [
        "/",
        f"/projects/{slug}/runs/?columns={every}",
        f"/projects/{slug}/trends/",
        f"/runs/{capture.run_id}/",
        f"/captures/{capture.pk}/",
        f"/captures/{capture.pk}/operators/",
        f"/captures/{capture.pk}/ranks/",
        f"/captures/{capture.pk}/ranks/0/",
        f"/compare/?captures={ids}",
        "/violations/",
        "/search/?q=Llama",
    ]
    seen = set()
    for page in pages:
        for name, told in heads(client.get(page).content.decode()):
            if name in NAMES:
                seen.add(name)
                assert told, f"{page} does not tell what {name} means"
    # The walk found what it was to look at.
    assert {"MFU", "Step time", "Device ratio", "Cast share", "NPU-hours", "Free", "Checklist"} <= seen
