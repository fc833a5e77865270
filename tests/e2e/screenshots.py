"""Takes pictures of every page with the demo's runs: both languages, both themes, and those that the README shows.

    python -m tests.e2e.screenshots [--access ACCESS.json] [--out var/screenshots] [--readme docs/images]

Starts a product of its own and loads the demo, unless --access names the access file of one that has it already.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboard.demo.story import AFTER_UPGRADE, BEFORE_UPGRADE, STORY
from tests.e2e.conftest import FLAGS, ROOT, Tab
from tests.live import LiveProduct

LANGUAGES, THEMES = ("en", "zh-hans"), ("light", "dark")
WIDTH, HEIGHT = 1440, 900
README = {"runs": ("light", 860), "capture": ("light", 1000), "step": ("dark", 830)}
"""Pictures of the README: page, theme and height."""
Access = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--access", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "screenshots")
    parser.add_argument("--readme", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    with product(options.access) as access, browser() as chromium:
        addresses = pages(access)
        for language in LANGUAGES:
            for theme in THEMES:
                take(chromium, access, addresses, options.out / f"{language}-{theme}", language, theme)
        take_for_readme(chromium, access, addresses, options.readme)


@contextmanager
def product(access: Path | None) -> Iterator[Access]:
    """What lets us into a product that has the demo."""
    if access:
        yield json.loads(access.read_text(encoding="utf-8"))
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-pictures-") as folder:
        # Under root PostgreSQL runs as another user, who must be able to pass through.
        Path(folder).chmod(0o711)
        live = LiveProduct(Path(folder) / "live")
        try:
            live.start(pages=True)
            command = ["manage.py", "load_demo", "--server", live.url, "--token", live.token]
            subprocess.run(
                [sys.executable, *command, "--project", live.project, "--wait"],
                env=live.environment(), cwd=ROOT, check=True,
            )  # fmt: skip
            yield {"url": live.url, "username": live.username, "password": live.password, "token": live.token,
                   "project": live.project}  # fmt: skip
        finally:
            live.stop()


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


def ask(access: Access, path: str) -> Any:
    request = urllib.request.Request(f"{access['url']}/api/v1{path}")
    request.add_header("Authorization", f"Bearer {access['token']}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def pages(access: Access) -> dict[str, str]:
    """Name and address of every page worth a picture."""
    slug = access["project"]
    runs = {row["key"]: row["id"] for row in ask(access, f"/runs?project={slug}")["runs"]}
    captures = {key: ask(access, f"/runs/{pk}/captures")["captures"][0]["id"] for key, pk in runs.items()}
    many_ranks = next(chapter.key for chapter in STORY if chapter.slow)
    staged = next(chapter.key for chapter in STORY if chapter.spec.pp > 1)
    experts = next(chapter.key for chapter in STORY if chapter.spec.moe)
    before, after, many = captures[BEFORE_UPGRADE], captures[AFTER_UPGRADE], captures[many_ranks]
    return {
        "home": "/",
        "runs": f"/projects/{slug}/runs/",
        "runs-columns": f"/projects/{slug}/runs/?mode=graph&order=mfu&columns=mfu,hfu,cast,exposed,recoverable",
        "trends": f"/projects/{slug}/trends/",
        "run": f"/runs/{runs[AFTER_UPGRADE]}/",
        "capture": f"/captures/{after}/",
        "capture-ranks": f"/captures/{many}/",
        "capture-stages": f"/captures/{captures[staged]}/",
        "capture-experts": f"/captures/{captures[experts]}/",
        "operators": f"/captures/{after}/operators/?by=shape",
        "ranks": f"/captures/{many}/ranks/",
        "rank-compare": f"/captures/{many}/ranks/compare/",
        "cost": "/cost/",
        "step": f"/captures/{after}/ranks/0/",
        "compare": f"/compare/?captures={before},{after}",
        "violations": "/violations/",
        "alerts": "/alerts/",
        "rules": f"/projects/{slug}/rules/",
        "channels": f"/projects/{slug}/channels/",
        "account": "/account/",
        "hosts": f"/projects/{slug}/hosts/",
        "upload": f"/projects/{slug}/upload/",
        "settings": f"/projects/{slug}/settings/",
        "project-new": "/projects/new/",
        "search": "/search/?q=llama",
        "not-found": "/runs/99999999/",
    }


def signed_in(chromium: Any, access: Access, language: str, theme: str, height: int = HEIGHT, scale: float = 1) -> Tab:
    context = chromium.new_context(
        viewport={"width": WIDTH, "height": height}, color_scheme=theme, device_scale_factor=scale
    )
    context.add_cookies([{"name": "django_language", "value": language, "url": access["url"]}])
    return Tab(context, access["url"]).sign_in(access["username"], access["password"])


def settled(tab: Tab, address: str) -> None:
    """Open a page and wait for its charts and their animation."""
    tab.open(address)
    tab.wait_for_load_state("networkidle")
    tab.wait_for_timeout(600)


def take(chromium: Any, access: Access, addresses: dict[str, str], folder: Path, language: str, theme: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tab = signed_in(chromium, access, language, theme)
    for name, address in addresses.items():
        settled(tab, address)
        tab.screenshot(path=folder / f"{name}.png", full_page=True)
        print(f"{folder.name}/{name}.png", flush=True)
    tab.context.clear_cookies(name="sessionid")
    tab.goto(f"{access['url']}/accounts/login/")
    tab.screenshot(path=folder / "sign-in.png")
    tab.context.close()


def take_for_readme(chromium: Any, access: Access, addresses: dict[str, str], folder: Path) -> None:
    """The pages of README in English as WebP, sharp on dense screens."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (theme, height) in README.items():
        tab = signed_in(chromium, access, "en", theme, height, scale=1.5)
        settled(tab, addresses[name])
        session = tab.context.new_cdp_session(tab.page)
        picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})["data"]
        (folder / f"{name}.webp").write_bytes(base64.b64decode(picture))
        tab.context.close()


if __name__ == "__main__":
    main()
