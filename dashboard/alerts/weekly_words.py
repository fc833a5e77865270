"""A project's week in words of the active language: short lines, each of which leads somewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.alerts import rules
from dashboard.alerts.models import Alert, AlertState
from dashboard.alerts.schedule import zone_of
from dashboard.alerts.weekly import Level, Violation, Week
from dashboard.alerts.wording import change_of, headline, name, plain, value_text
from dashboard.hosts.ledger import Card
from dashboard.runs.cost_rows import LEAST, Cost, part_names
from dashboard.runs.models import Run, Waiver
from dashboard.runs.templatetags.units import hours_text, percent_text

MOST_LINES = 8
"""Of a section; what is left is counted, and a link leads to all of it."""
UNTOLD = ("uncut", "untold")
"""Parts of which nobody knows whether they were lost."""


@dataclass(frozen=True)
class Line:
    """A sentence about people's own names, made plain, and the page it leads to."""

    text: str
    path: str


@dataclass(frozen=True)
class Section:
    title: str
    lines: list[Line]
    rest: str = ""
    """The page that shows what `lines` has too little room for."""

    @property
    def shown(self) -> list[Line]:
        return self.first(MOST_LINES)

    def first(self, most: int) -> list[Line]:
        """The first `most` lines, and how many follow."""
        left = len(self.lines) - most
        if left <= 0:
            return self.lines
        more = ngettext("and %(count)s more", "and %(count)s more", left) % {"count": left}
        return [*self.lines[:most], Line(more, self.rest)]


@dataclass(frozen=True)
class Digest:
    title: str
    about: str
    sections: list[Section]


def digest_of(week: Week) -> Digest:
    slug = week.project.slug
    hosts, runs = reverse("hosts:hosts", args=[slug]), reverse("runs:run_list", args=[slug])
    trends = reverse("runs:trends", args=[slug])
    sections = [
        Section(_("NPU-hours"), _hours(week)),
        Section(_("MFU"), _mfu(week, trends), trends),
        Section(_("Got worse"), _worse(week), _inbox(week)),
        Section(_("Got better"), [_better(level, trends) for level in week.better], trends),
        Section(_("Violations"), _violations(week), _violations_page(week)),
        Section(_("Runs without a profile"), list(map(_unprofiled, week.unprofiled)), runs),
        Section(_("Cards that keep being slow"), [_card(card, hosts) for card in week.cards], hosts),
    ]
    return Digest(_title(week), _about(week), [section for section in sections if section.lines])


def _title(week: Week) -> str:
    known = {"project": plain(week.project.name), "day": _day(week), "what": _(", ").join(_told(week))}
    return _("%(project)s, week to %(day)s: %(what)s") % known


def _told(week: Week) -> Iterator[str]:
    if week.is_quiet:
        yield _("nothing happened")
    if week.cost.hours is not None:
        yield _("%(hours)s NPU-hours") % {"hours": hours_text(week.cost.hours)}
    if count := len(week.worse):
        yield ngettext("%(count)s thing got worse", "%(count)s things got worse", count) % {"count": count}
    if count := len(week.better):
        yield ngettext("%(count)s got better", "%(count)s got better", count) % {"count": count}
    if not week.is_quiet and week.cost.hours is None and not week.worse and not week.better:
        yield ngettext("%(count)s capture", "%(count)s captures", week.captures) % {"count": week.captures}


def _day(week: Week) -> str:
    return date_format(week.end.astimezone(zone_of(week.zone)), "DATE_FORMAT")


def _about(week: Week) -> str:
    begin, end = (date_format(at.astimezone(zone_of(week.zone)), "DATETIME_FORMAT") for at in (week.begin, week.end))
    return _("%(begin)s to %(end)s (%(zone)s)") % {"begin": begin, "end": end, "zone": week.zone}


def _hours(week: Week) -> list[Line]:
    cost, page = week.cost, reverse("runs:cost") + "?days=7"
    if not cost.runs:
        return []
    return [Line(_hours_line(cost, week.cost_before), page), *(Line(text, page) for text in _lost(cost))]


def _hours_line(cost: Cost, before: Cost) -> str:
    told = ngettext("%(hours)s by %(count)s run", "%(hours)s by %(count)s runs", cost.runs)
    parts = [told % {"hours": _amount(cost.hours), "count": cost.runs}]
    if cost.unknown and cost.hours is not None:
        parts.append(_("not known of %(count)s of them") % {"count": cost.unknown})
    if before.runs:
        parts.append(_("the week before %(hours)s") % {"hours": _amount(before.hours)})
    return _("; ").join(parts)


def _amount(hours: float | None) -> str:
    return _("unknown") if hours is None else str(hours_text(hours))


def _lost(cost: Cost) -> Iterator[str]:
    """What the hours went to besides work at the peak, the most first, and what could be won."""
    if not cost.hours:
        return
    names = part_names()
    parts = sorted(cost.parts.items(), key=lambda part: -part[1])
    told = [(part, _("%(what)s %(hours)s (%(share)s)") % {"what": names[part], "hours": hours_text(hours),
                                                        "share": percent_text(hours / cost.hours)})
            for part, hours in parts if hours / cost.hours > LEAST and part != "peak"]  # fmt: skip
    if lost := [text for part, text in told if part not in UNTOLD]:
        yield _("Lost: %(parts)s") % {"parts": _("; ").join(lost)}
    if untold := [text for part, text in told if part in UNTOLD]:
        yield _("Nobody can tell: %(parts)s") % {"parts": _("; ").join(untold)}
    if cost.recoverable is not None:
        share = percent_text(cost.recoverable_share)
        yield _("Could be won: %(hours)s (%(share)s)") % {"hours": hours_text(cost.recoverable), "share": share}


def _mfu(week: Week, trends: str) -> list[Line]:
    lines = [Line(_mfu_text(level), f"{trends}?{urlencode({'metric': 'mfu', 'q': level.model})}")
             for level in week.levels]  # fmt: skip
    if week.without_mfu:
        text = ngettext("Unknown of %(count)s capture", "Unknown of %(count)s captures", week.without_mfu)
        lines.append(Line(text % {"count": week.without_mfu}, f"{trends}?metric=mfu"))
    return lines


def _mfu_text(level: Level) -> str:
    if level.old is None:
        return _("%(model)s: %(new)s; nothing the week before that it may be compared with") % _words(level)
    return _("%(model)s: %(old)s → %(new)s (%(change)s)") % _words(level)


def _words(level: Level) -> dict[str, str]:
    return {
        "model": _model(level),
        "name": name(level.metric),
        "old": value_text(level.metric, level.old),
        "new": value_text(level.metric, level.new),
        "change": _change(level),
    }


def _model(level: Level) -> str:
    model = plain(level.model)
    if level.cards is None:
        return model
    cards = ngettext("%(count)s card", "%(count)s cards", level.cards) % {"count": level.cards}
    return _(", ").join((model, cards))


def _change(level: Level) -> str:
    return change_of(level.metric, rules.change(rules.BY_METRIC[level.metric], level.old, level.new))


def _better(level: Level, trends: str) -> Line:
    text = _("%(name)s of %(model)s: %(old)s → %(new)s (%(change)s)") % _words(level)
    return Line(text, f"{trends}?{urlencode({'metric': level.metric, 'q': level.model})}")


def _worse(week: Week) -> list[Line]:
    lines = [
        Line(_("; ").join((plain(headline(alert)), _owner_of(alert))), alert.get_absolute_url()) for alert in week.worse
    ]
    if week.older_open:
        text = ngettext("%(count)s older alert is open", "%(count)s older alerts are open", week.older_open)
        owned = _("%(count)s of them without an owner") % {"count": week.older_unowned}
        told = [text % {"count": week.older_open}, *([owned] if week.older_unowned else [])]
        lines.append(Line(_(", ").join(told), _inbox(week)))
    return lines


def _owner_of(alert: Alert) -> str:
    if alert.state == AlertState.EXPECTED:
        return _("an expected change")
    owner = alert.assignee or (alert.decided_by if alert.state == AlertState.ACKNOWLEDGED else None)
    return _owned(owner.username if owner else "")


def _owned(owner: str) -> str:
    return _("owner: %(person)s") % {"person": plain(owner)} if owner else _("nobody owns it")


def _inbox(week: Week) -> str:
    return f"{reverse('alerts:inbox')}?{urlencode({'project': week.project.slug})}"


def _violations(week: Week) -> list[Line]:
    page = _violations_page(week)
    if not (week.opened_count or week.closed or week.expiring or week.open_count):
        return []
    counts = {"opened": week.opened_count, "closed": len(week.closed), "open": week.open_count}
    return [
        Line(_("%(opened)s opened, %(closed)s closed, %(open)s open over all runs") % counts, page),
        *map(_expiring, week.expiring),
        *map(_opened, week.opened),
        *map(_closed, week.closed),
    ]


def _violations_page(week: Week) -> str:
    return f"{reverse('runs:violations')}?{urlencode({'project': week.project.slug})}"


def _expiring(waiver: Waiver) -> Line:
    of_model = waiver.every_run and waiver.run.model_name
    known = {
        "item": name("item:" + waiver.item),
        "run": _("every run of %(model)s") % {"model": plain(of_model)} if of_model else plain(waiver.run.name),
        "person": plain(waiver.owner.username),
        "day": date_format(waiver.expires, "DATE_FORMAT"),
    }
    text = _("%(item)s of %(run)s: the waiver of %(person)s ends on %(day)s") % known
    return Line(text, waiver.run.get_absolute_url())


def _opened(one: Violation) -> Line:
    known = {"item": name("item:" + one.item), "run": plain(one.run.name)}
    parts = [_("Opened: %(item)s, since %(run)s") % known]
    if one.lost_ns is not None:
        parts.append(_("%(hours)s NPU-hours so far") % {"hours": hours_text(one.lost_ns / 3.6e12)})
    return Line(_("; ").join([*parts, _owned(one.owner)]), one.run.get_absolute_url())


def _closed(one: Violation) -> Line:
    known = {"item": name("item:" + one.item), "run": plain(one.run.name)}
    return Line(_("Closed: %(item)s, since %(run)s") % known, one.run.get_absolute_url())


def _unprofiled(run: Run) -> Line:
    return Line(plain(run.name), run.get_absolute_url())


def _card(card: Card, hosts: str) -> Line:
    known = {"host": plain(card.host), "device": card.device_id, "times": card.times, "captures": card.captures}
    text = _("%(host)s NPU %(device)s: slow in %(times)s of %(captures)s captures") % known
    return Line(text, hosts)


def as_text(digest: Digest, site: str, most: int = MOST_LINES) -> str:
    """Plain text: what a line leads to stands below it."""
    blocks = [digest.about]
    for section in digest.sections:
        lines = (f"- {line.text}\n  {site}{line.path}" for line in section.first(most))
        blocks.append("\n".join([section.title, *lines]))
    return "\n\n".join(blocks)


def fitted(digest: Digest, site: str, most_bytes: int) -> str:
    """The text with as many lines of each section as there is room for."""
    texts: Iterable[str] = (as_text(digest, site, most) for most in range(MOST_LINES, 0, -1))
    for text in texts:
        if len(text.encode()) <= most_bytes:
            return text
    return _cut(as_text(digest, site, 1), most_bytes)


def _cut(text: str, most_bytes: int) -> str:
    """The first sections of `text` that fit."""
    kept, size = [], 0
    for block in text.split("\n\n"):
        size += len(block.encode()) + 2
        if size > most_bytes:
            break
        kept.append(block)
    return "\n\n".join(kept)
