"""Server time, queries and size of every page and chart at 10 000 runs; first paint and weight in Chromium.

BENCH_DATA names a folder that keeps the filled database for the next time; without it one is made and thrown away.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboard.services import free_port, start_postgres, start_valkey
from tests.bench.common import ROOT, busy, line, percentile, python, use, work_folder
from tests.bench.seed import PASSWORD, USERNAME, Seeded

MOST_MS, MOST_QUERIES, MOST_CHART, MOST_PAINT_MS, MOST_WEIGHT = 150, 12, 300_000, 1_000, 600_000
OBJECTS = 40
FIRST_ROWS = 1_000
"""Bytes of a file after which it holds rows: gzip's own head comes before the database was asked."""
CHARTS = ("steps", "waterfall", "layers")
CURVES = ("loss", "norm", "step_time")
COMPARED = ("steps/?", "layers/?", "series/?value=loss&", "series/?value=step_time&align=first&")


@dataclass
class Timing:
    """One request per address: times in ms, numbers of queries, bytes of the answers, and those of them gzipped."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    database: list[float] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@contextmanager
def filled_database(folder: Path) -> Iterator[Seeded]:
    """PostgreSQL and Valkey under `folder`, seeded when they are new; Django is set up for them."""
    postgres, valkey = start_postgres(folder, durable=False), start_valkey(folder)
    try:
        secrets = {"DATABASE_URL": postgres.url, "REDIS_URL": valkey.url, "SECRET_KEY": "only-for-benches-" + "x" * 40}
        use(
            {
                **secrets,
                "DJANGO_SETTINGS_MODULE": "dashboard.settings",
                "STEPSCOPE_DATA": str(folder / "data"),
                "STEPSCOPE_LOG_LEVEL": "WARNING",
            }
        )
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        call_command("collectstatic", verbosity=0, interactive=False)
        yield seeded(folder / "seeded.json")
    finally:
        valkey.stop()
        postgres.stop()


def seeded(path: Path) -> Seeded:
    from tests.bench import seed

    if not path.exists():
        before = time.perf_counter()
        path.write_text(json.dumps(seed.seed().__dict__))
        line("seed", f"{time.perf_counter() - before:.0f} s")
    return Seeded(**json.loads(path.read_text()))


def addresses(done: Seeded) -> dict[str, list[str]]:
    """The addresses of every kind of page, over many different objects."""
    rng = random.Random(1)
    runs = [*done.long_runs, *rng.sample(done.runs, OBJECTS - len(done.long_runs))]
    full, others = done.full_captures[:-2], done.other_captures
    captures = rng.sample(full, OBJECTS)
    fleet = f"/projects/{done.project}"
    orders = ("newest", "step_time", "mfu", "-mfu", "device_ratio", "cast", "memory", "failed")
    filters = ("", "&model=llama2_7b", "&q=nightly", "&q=99", "&fails=dtype_cast", "&cann=8.3.RC1&mode=graph")
    lists = [
        f"?order={order}{text}&page={page}"
        for order in orders
        for text, page in zip(filters, (1, 2, 3, 1, 2, 50), strict=True)
    ]
    pairs = [f"{rng.choice(full)},{rng.choice(full)}" for _ in range(OBJECTS)]
    eights = [",".join(map(str, rng.sample(full, 8))) for _ in range(OBJECTS)]
    long = ",".join(map(str, done.full_captures[-10:-2]))
    metrics = ("mfu", "step_time_ns", "device_ratio", "cast_ratio", "peak_memory_bytes", "tflops_per_device")
    return {
        "home": ["/"] * 10,
        "runs": [f"{fleet}/runs/{text}" for text in lists],
        "runs, small project": [f"/projects/team-{number}/runs/" for number in range(1, 11)],
        "runs as CSV": [f"{fleet}/runs.csv", f"{fleet}/runs.csv?order=mfu", f"{fleet}/runs.csv?q=nightly"] * 3,
        "trends": [f"{fleet}/trends/?metric={metric}{text}" for metric in metrics for text in ("", "&q=llama")],
        "run": [f"/runs/{run}/" for run in runs],
        "run, 500 captures": [f"/runs/{done.busy_run}/"] * 10,
        "run, live part": [f"/runs/{run}/live/" for run in runs],
        "capture": [f"/captures/{capture}/" for capture in captures],
        "capture, short report": [f"/captures/{capture}/" for capture in others[:OBJECTS]],
        "capture, 1000 ranks": [f"/captures/{done.large_capture}/?rank={rank}" for rank in range(0, 1000, 50)],
        "ranks": [f"/captures/{capture}/ranks/" for capture in captures],
        "ranks, 1000 ranks": [f"/captures/{done.large_capture}/ranks/?order={key}" for key in ("rank", "-free_ns")] * 5,
        "step": [f"/captures/{capture}/ranks/0/" for capture in captures],
        "step, 1 000 000 kernels": [
            f"/captures/{done.full_captures[-1]}/ranks/0/{text}"
            for text in ("", "?page=500", "?q=matmul", "?layer=7", "?order=start", "?type=Cast&page=3") * 2
        ],
        "compare 2": [f"/compare/?captures={pair}" for pair in pairs],
        "compare 8": [f"/compare/?captures={eight}" for eight in eights],
        "violations": ["/violations/", "/violations/?page=100", "/violations/?item=dtype_cast", "/violations/?waived=1",
                       f"/violations/?project={done.project}"] * 4,
        "cost": [f"/cost/?days={days}" for days in (7, 30, 90, 365)] * 3,
        "ranks beside, 1000 ranks": [
            f"/captures/{done.large_capture}/ranks/compare/?ranks={ranks}" for ranks in ("", "7", "1,2,3,4,5,6,7,8")
        ] * 4,
        "search": [f"/search/?q={text}" for text in ("nightly", "llama", "9999", "step-777", "no such", "a")] * 2,
        "alerts": ["/alerts/", "/alerts/?state=expected&page=40", f"/alerts/?project={done.project}"] * 4,
        "settings": [f"{fleet}/settings/", f"{fleet}/channels/", f"{fleet}/upload/", "/projects/new/"] * 3,
        "sweep, preview": [f"{fleet}/settings/retention/preview/?keep_captures_days={days}" for days in (7, 20)],
        "API runs": [f"/api/v1/runs?project={done.project}&order=-mfu&page={page}" for page in (1, 2, 100)] * 4,
        "API capture": [f"/api/v1/captures/{capture}" for capture in captures],
        "chart trend": [f"{fleet}/trends/{metric}/chart/" for metric in metrics] * 2,
        "chart series": [f"/runs/{run}/series/{kind}/chart/" for run in runs for kind in ("loss", "step_time")],
        "chart capture": [f"/captures/{capture}/charts/{name}/" for capture in captures[:15] for name in CHARTS],
        "chart ranks, 1000 ranks": [f"/captures/{done.large_capture}/charts/ranks/"] * 10,
        "chart layers, 1000 ranks": [f"/captures/{done.large_capture}/charts/layers/?rank={rank}" for rank in "123456"],
        "chart compare, long runs": [f"/compare/charts/series/?value={value}&captures={long}" for value in CURVES],
        "chart compare": [f"/compare/charts/{chart}captures={ids}" for ids in eights for chart in COMPARED],
    }  # fmt: skip


def timed(client: Any, urls: list[str]) -> Timing:
    """The answers to one request per address. The process is warm: a server is, but for its first minute.

    The time of a file that streams is that to its first rows: from there on it goes as fast as whoever takes it.
    """
    from django.db import connection

    timing = Timing()
    for warm, url in [(True, url) for url in urls[:2]] + [(False, url) for url in urls]:
        spent: list[float] = []

        def watch(execute: Callable[..., Any], *arguments: Any, spent: list[float] = spent) -> Any:
            before = time.perf_counter()
            try:
                return execute(*arguments)
            finally:
                spent.append(time.perf_counter() - before)

        before, cpu = time.perf_counter(), time.process_time()
        with connection.execute_wrapper(watch):
            answer = client.get(url)
            parts = iter(answer.streaming_content if answer.streaming else [answer.content])
            sent = [next(parts, b"")]
            while sum(map(len, sent)) < FIRST_ROWS and (part := next(parts, None)) is not None:
                sent.append(part)
            wall, spent_cpu, waited = time.perf_counter() - before, time.process_time() - cpu, sum(spent)
            sent += parts
        if answer.status_code != 200:
            raise SystemExit(f"{url}: {answer.status_code}")
        if not warm:
            timing.wall.append(wall * 1e3)
            timing.cpu.append(spent_cpu * 1e3)
            timing.database.append(waited * 1e3)
            timing.queries.append(len(spent))
            timing.size.append(
                len(gzip.decompress(b"".join(sent)) if answer.get("Content-Encoding") else b"".join(sent))
            )
            timing.sent.append(sum(map(len, sent)))
    return timing


def server_times(done: Seeded) -> None:
    from django.test import Client

    from dashboard.warm import warm_up

    warm_up()  # as each web process does
    client = Client(SERVER_NAME="127.0.0.1", headers={"accept-encoding": "gzip"})
    client.force_login(_lead(), "dashboard.accounts.sign_in.PasswordBackend")
    wanted = os.environ.get("BENCH_PAGES", "")
    for kind, urls in addresses(done).items():
        if wanted and not kind.startswith(wanted):
            continue
        timing = timed(client, urls)
        p50, p95 = percentile(timing.wall, 0.5), percentile(timing.wall, 0.95)
        queries, size = max(timing.queries), max(timing.size)
        missed = p95 > MOST_MS or queries > MOST_QUERIES or (kind.startswith("chart") and size > MOST_CHART)
        line(
            f"{kind:26}",
            f"p50 {p50:6.1f} ms, p95 {p95:6.1f} ms (Python p50 {percentile(timing.cpu, 0.5):5.1f}, database"
            f" p50 {percentile(timing.database, 0.5):5.1f} p95 {percentile(timing.database, 0.95):6.1f}),"
            f" {queries:2} queries, {size / 1e3:5.0f} kB, {max(timing.sent) / 1e3:4.0f} sent"
            + ("  MISSED" if missed else ""),
        )


def _lead() -> Any:
    from dashboard.accounts.models import User

    return User.objects.get(username=USERNAME)


# In a browser


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """gunicorn as `manage.py up` starts it, on loopback."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = python(
        "-m", "gunicorn", "dashboard.wsgi", "--bind", f"127.0.0.1:{port}", "--workers", "2", "--threads", "4"
    )
    environment = {**os.environ, "STEPSCOPE_URL": url, "PYTHONPATH": str(ROOT)}
    with (folder / "web.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        for _ in range(200):
            with suppress(OSError):
                urllib.request.urlopen(f"{url}/healthz", timeout=5)
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


PAINT = """() => new Promise(done => setTimeout(() => {
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  const parts = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
  done([paint ? paint.startTime : null, parts.reduce((sum, part) => sum + part.transferSize, 0), parts.length]);
}, 300))"""


def browser_pages(done: Seeded) -> dict[str, str]:
    fleet, full = f"/projects/{done.project}", done.full_captures
    return {
        "home": "/", "runs": f"{fleet}/runs/", "trends": f"{fleet}/trends/", "run": f"/runs/{done.long_runs[0]}/",
        "capture": f"/captures/{full[3]}/", "capture, 1000 ranks": f"/captures/{done.large_capture}/",
        "step": f"/captures/{full[3]}/ranks/0/", "compare": f"/compare/?captures={full[3]},{full[4]}",
        "violations": "/violations/", "alerts": "/alerts/",
    }  # fmt: skip


def first_paint(url: str, done: Seeded) -> None:
    """First contentful paint and bytes over the wire, the second visit in one session: ECharts is in the cache."""
    from playwright.sync_api import sync_playwright

    from tests.conftest import chromium

    if (path := chromium()) is None:
        return line("first paint", "not measured, no Chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{url}/accounts/login/")
        page.fill("[name=login]", USERNAME)
        page.fill("[name=password]", PASSWORD)
        page.press("[name=password]", "Enter")
        page.wait_for_url(f"{url}/")
        for name, address in browser_pages(done).items():
            visits = []
            for _ in range(4):
                page.goto(url + address, wait_until="networkidle")
                visits.append(page.evaluate(PAINT))
            first, later = visits[0], visits[1:]
            paint = percentile([visit[0] or 0 for visit in later], 0.5)
            weight = max(visit[1] for visit in later)
            missed = paint > MOST_PAINT_MS or weight > MOST_WEIGHT
            text = f"first paint {paint:4.0f} ms (first visit {first[0] or 0:4.0f}), {weight / 1e3:4.0f} kB"
            line(f"{name:26}", f"{text} (first visit {first[1] / 1e3:4.0f})" + ("  MISSED" if missed else ""))
        browser.close()


def main() -> None:
    kept = os.environ.get("BENCH_DATA")
    with work_folder("pages") as made:
        folder = Path(kept).resolve() if kept else made
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)
        with filled_database(folder) as done:
            print(
                f"bench_pages: server time p95 <= {MOST_MS} ms, <= {MOST_QUERIES} queries, charts <= 300 kB; {busy()}"
            )
            server_times(done)
            if os.environ.get("BENCH_BROWSER", "1") == "1":
                with web_server(folder) as url:
                    print(f"bench_pages: first paint <= 1000 ms, <= 600 kB after the first visit; {busy()}")
                    first_paint(url, done)


if __name__ == "__main__":
    main()
