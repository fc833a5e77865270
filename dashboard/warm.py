"""Start-up work that would else be paid for by the first pages, or by every one: imports, templates, the collector.

A full garbage collection walks every object there is, and a web process has 200 000 of them once Django, the charts and
Polars are loaded: 150 to 400 ms in the middle of somebody's page, every few hundred pages. What is there at start stays
for good, so the collector need not look at it again.
"""

from __future__ import annotations

import gc
from importlib import import_module
from threading import Thread

LAZY = ("polars", "ruptures")
"""What views import at their first call. Imported only: Polars does no work here."""
YOUNG = 10_000
"""New objects before the collector looks at the young ones. A page with a chart makes tens of thousands and keeps none,
so that the default of 700 has it look dozens of times."""


def start() -> Thread:
    """Warm up beside the first requests: a process that answers a second later is one that looks dead for so long."""
    thread = Thread(target=warm_up, name="warm-up", daemon=True)
    thread.start()
    return thread


def warm_up() -> None:
    """Load what pages will need, then take it out of the garbage collector's sight. For a process that serves pages."""
    from django.urls import get_resolver

    _ = get_resolver().url_patterns  # imports every view
    for name in LAZY:
        import_module(name)
    load_templates()
    freeze()


def load_templates() -> None:
    """Compile our templates; the loader keeps them."""
    from django.conf import settings
    from django.template.loader import get_template

    folder = settings.BASE_DIR / "templates"
    for path in sorted(folder.rglob("*.html")):
        get_template(str(path.relative_to(folder)))


def freeze() -> None:
    """Let the garbage collector forget what is there now, and look less often at what is new."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
