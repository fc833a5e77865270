"""HTML without a template language: every text is escaped unless it was made here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def safe(value: object) -> str:
    """`value` as markup: escaped unless it is `Html`; a dash for what is not known."""
    if isinstance(value, Html):
        return str(value)
    return "–" if value is None else escape(str(value), quote=True)


def tag(name: str, *children: object, **attributes: object) -> Html:
    """<name attributes>children</name>. `cls` is class, `_` in a name is `-`; None leaves an attribute out."""
    pairs = (("class" if key == "cls" else key.replace("_", "-"), value) for key, value in attributes.items())
    written = "".join(f' {key}="{escape(str(value), quote=True)}"' for key, value in pairs if value is not None)
    return Html(f"<{name}{written}>{''.join(safe(child) for child in children)}</{name}>")


def section(title: str, *children: object) -> Html:
    """A part of a page under its title."""
    return tag("section", tag("h2", title), *children)


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    text: Sequence[int] = (0,),
    cls: str = "",
    bars: Sequence[int] = (),
) -> Html:
    """A table that scrolls by itself where it is too wide; columns not in `text` are numbers, aligned to the right, and
    those in `bars` repeat a number as a bar, which narrow screens leave out."""
    kinds = ["bars" if i in bars else "text" if i in text else "number" for i in range(len(titles))]
    head = tag("tr", *(tag("th", title, cls=kind, scope="col") for title, kind in zip(titles, kinds, strict=True)))
    body = (tag("tr", *(tag("td", cell, cls=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows)
    grid = tag("table", tag("thead", head), tag("tbody", *body), cls=cls or None)
    return tag("div", grid, cls="scroll", tabindex="0")


def bar(share: float | None, cls: str = "compute") -> Html:
    """A thin bar as long as `share` of its cell, 0 to 1."""
    width = 0.0 if share is None else max(0.0, min(1.0, share)) * 100
    shape = Html(f'<rect class="fill-{escape(cls)}" width="{width:.2f}" height="8" rx="1"/>')
    return tag("svg", shape, cls="bar", viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")


def stacked(parts: Sequence[tuple[str, float]], label: str) -> Html:
    """One bar made of (class, share of the bar) from left to right."""
    shapes, at = [], 0.0
    for cls, share in parts:
        width = max(0.0, min(share, 1.0 - at / 100)) * 100
        shapes.append(f'<rect class="fill-{escape(cls)}" x="{at:.3f}" width="{width:.3f}" height="10"/>')
        at += width
    inside = Html("".join(shapes))
    return tag(
        "svg", inside, cls="stack", viewBox="0 0 100 10", preserveAspectRatio="none", role="img", aria_label=label
    )


def line(values: Sequence[float | None], label: str) -> Html:
    """A curve over the index, scaled to its own range; unknown values are holes."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    step = 600 / max(1, len(values) - 1)
    pieces, pen = [], "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{index * step:.1f} {116 - (value - low) / span * 112:.1f}")
        pen = "L"
    path = Html(f'<path d="{"".join(pieces)}"/>')
    return tag(
        "svg", path, cls="curve", viewBox="0 0 600 120", preserveAspectRatio="none", role="img", aria_label=label
    )
