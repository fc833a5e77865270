"""Sends notices through Apprise: at least once, tried again with longer and longer waits, given up in the end."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.template.loader import render_to_string
from django.utils import timezone, translation
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.alerts import schedule
from dashboard.alerts.models import Alert, Channel, Delivery, WeeklyDigest
from dashboard.alerts.outbound import leads_inside, only_outside
from dashboard.alerts.weekly import week_of
from dashboard.alerts.weekly_words import digest_of, fitted
from dashboard.alerts.wording import headline, plain

WAITS = [timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240)]
"""After the first, second ... failure; after the last one follows giving up."""
CLAIM = timedelta(minutes=2)
MOST_BYTES = 32_768
SHORTEST_SECRET = 4
LONG = ("capture__report", "capture__run__meta", "capture__run__config_text")

SCHEMAS = (
    *("json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos", "feishu", "lark", "dingtalk", "wecombot"),
    *("slack", "discord", "workflow", "workflows", "gchat", "tgram", "mmost", "mmosts", "rocket", "rockets", "zulip"),
    *("matrix", "matrixs", "wxteams", "ntfy", "ntfys", "gotify", "gotifys", "bark", "barks", "pushplus", "schan"),
    *("pagerduty", "opsgenie"),
)
# Apprise would read these from the server's own disk.
LOCAL_FILES = re.compile(r"template|keyfile|pgp|cert|attach|config", re.IGNORECASE)


@dataclass(frozen=True)
class Notice:
    """`html` is what mail gets instead of the text; empty where there is none. `is_quiet`: it tells of nothing."""

    title: str
    text: str
    html: SafeString = SafeString()
    is_warning: bool = False
    is_quiet: bool = False


def address_problem(address: str) -> str | None:
    """Why notices cannot go to this Apprise address; None when they can."""
    import apprise

    schema = address.partition("://")[0].lower()
    if schema not in SCHEMAS:
        return _("Addresses of this kind are not taken. Known are: %(known)s.") % {"known": ", ".join(SCHEMAS)}
    if any(LOCAL_FILES.search(key) for key, _value in parse_qsl(urlsplit(address).query, keep_blank_values=True)):
        return _("The address must not name files of the server.")
    if apprise.Apprise.instantiate(address, suppress_exceptions=True) is None:
        return _("Apprise cannot read this address.")
    if leads_inside(address):
        return _("The address leads to this server itself or its network's internals.")
    return None


def masked(address: str) -> str:
    """The address without its secrets."""
    import apprise

    found = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    if found is None:
        return address.partition("://")[0] + "://..."
    return str(found.url(privacy=True)).partition("?")[0]  # type: ignore[no-untyped-call]


def claim(delivery_id: int) -> bool:
    """Take a due delivery; True for the one worker that got it. Comes due again by itself should that worker die."""
    now = timezone.now()
    due = Delivery.objects.filter(pk=delivery_id, sent=None, gave_up=False, due__lte=now)
    return bool(due.update(attempts=F("attempts") + 1, due=now + CLAIM))


def deliver(delivery_id: int) -> None:
    """Try a due delivery once and write down how it went."""
    if not claim(delivery_id):
        return
    delivery = Delivery.objects.select_related("channel__project").get(pk=delivery_id)
    with translation.override(delivery.channel.language):
        notice = notice_of(delivery)
    if notice is None:
        delivery.delete()  # what it would have told of was dropped or deleted
        return
    if notice.is_quiet and not delivery.is_test and not plan_of(delivery.channel).even_quiet:
        Delivery.objects.filter(pk=delivery_id).update(sent=timezone.now(), quiet=True, error="")
        return
    error = send(delivery.channel, notice)
    now = timezone.now()
    if error is None:
        Delivery.objects.filter(pk=delivery_id).update(sent=now, error="")
    elif delivery.attempts > len(WAITS) or delivery.is_test:
        Delivery.objects.filter(pk=delivery_id).update(gave_up=True, error=error)
    else:
        Delivery.objects.filter(pk=delivery_id).update(due=now + WAITS[delivery.attempts - 1], error=error)


def queue_weekly(channel_id: int, notify: Callable[[int], object]) -> None:
    """Make one delivery of the week that ended last, and set when the next is due, both or neither. Of several weeks
    that the clock missed only the last is told."""
    with transaction.atomic():
        now = timezone.now()
        locked = WeeklyDigest.objects.select_for_update(of=("self",))
        plan = locked.filter(pk=channel_id, due__lte=now, channel__active=True).first()
        if plan is None:
            return
        plan.last = schedule.newest_moment(now, plan.day, plan.hour, plan.zone)
        plan.plan(now)
        plan.save(update_fields=["last", "due"])
        delivery = Delivery.objects.create(channel_id=channel_id, week_end=plan.last)
        transaction.on_commit(partial(notify, delivery.pk), robust=True)  # else the clock sends it


def notice_of(delivery: Delivery) -> Notice | None:
    """What to send, in the active language; None when there is nothing to tell."""
    if delivery.week_end is not None:
        return weekly_notice(delivery.channel, delivery.week_end, is_test=delivery.is_test)
    alerts = list(delivery.alerts.select_related("capture__run").defer(*LONG).order_by("id"))
    if not alerts and not delivery.is_test:
        return None
    title, text = message(delivery.channel, alerts)
    return Notice(title, text, is_warning=bool(alerts))


def weekly_notice(channel: Channel, end: datetime, *, is_test: bool = False) -> Notice:
    """The digest of the seven days up to `end`, in the active language."""
    week = week_of(channel.project, end, plan_of(channel).zone)
    digest = digest_of(week)
    title = _("Test: %(title)s") % {"title": digest.title} if is_test else digest.title
    if _takes_html(channel.url):
        html = render_to_string("alerts/_weekly.html", {"digest": digest, "site": settings.SITE_URL})
        return Notice(title, "", html, is_quiet=week.is_quiet)
    room = _most_bytes(channel.url) - len(title.encode()) - len("\r\n")
    return Notice(title, fitted(digest, settings.SITE_URL, room), is_quiet=week.is_quiet)


def plan_of(channel: Channel) -> WeeklyDigest:
    """The channel's own, or one that is off."""
    found = WeeklyDigest.objects.filter(channel=channel).first()
    return found or WeeklyDigest(channel=channel, zone=settings.TIME_ZONE)


def replan(channel: Channel) -> None:
    """A digest that came due while the channel was off is not sent once it is on again."""
    with transaction.atomic():
        plan = WeeklyDigest.objects.select_for_update().filter(channel=channel).first()
        if plan is not None:
            plan.plan(timezone.now())
            plan.save(update_fields=["due"])


def _most_bytes(address: str) -> int:
    """What the service takes of title and text; its limit may count characters, and bytes are never fewer."""
    import apprise

    found = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    return MOST_BYTES if found is None else found.body_maxlen


def _takes_html(address: str) -> bool:
    """Mail, unless its address says `format=text`."""
    parts = urlsplit(address)
    return parts.scheme.lower() in ("mailto", "mailtos") and dict(parse_qsl(parts.query)).get("format") != "text"


def send(channel: Channel, notice: Notice) -> str | None:
    """Send it; what went wrong, None when it was taken."""
    import apprise

    with translation.override(channel.language):
        problem = address_problem(channel.url)
    if problem:
        return problem
    sender = apprise.Apprise()
    sender.add(channel.url)
    for service in sender:
        service.redirects = False  # the address was checked; where it points to was not
    kind = apprise.NotifyType.WARNING if notice.is_warning else apprise.NotifyType.INFO
    written = apprise.NotifyFormat.HTML if notice.html else apprise.NotifyFormat.TEXT
    with apprise.LogCapture(level=logging.WARNING) as log, only_outside():  # type: ignore[no-untyped-call]
        taken = sender.notify(
            title=notice.title, body=notice.html or notice.text, notify_type=kind, body_format=written
        )
        said = log.getvalue().strip()
    return None if taken else (without_secrets(said, channel.url)[-500:] or "The receiver did not take it.")


def without_secrets(text: str, address: str) -> str:
    """`text` without what stands in the address beside its host: every member may read the log of deliveries."""
    parts = urlsplit(address)
    host = (parts.hostname or "").lower()
    words = set(re.split(r"[/:@?&=;,]+", address.partition("://")[2]))
    secrets = {form for word in words for form in (word, unquote(word)) if len(form) >= SHORTEST_SECRET}
    for secret in sorted(secrets, key=len, reverse=True):
        if secret.lower() not in host:
            text = text.replace(secret, "***")
    return text


def message(channel: Channel, alerts: Sequence[Alert]) -> tuple[str, str]:
    """Title and text in the active language. Names come from people and dumps: they are made plain."""
    if not alerts:
        title = _("Stepscope: a test notice of %(project)s") % {"project": plain(channel.project.name)}
        return title, _("Alerts of this project will arrive here.") + f"\n{settings.SITE_URL}/"
    run = alerts[0].capture.run
    lines = [plain(f"{channel.project.name} / {run.name} / {alerts[0].capture.key}")]
    if len(alerts) == 1:
        return plain(headline(alerts[0])), "\n".join([*lines, *_told(channel, alerts[0])])
    for alert in alerts:
        lines += ["", plain(headline(alert)), *_told(channel, alert)]
    title = ngettext("%(count)s thing got worse: %(run)s", "%(count)s things got worse: %(run)s", len(alerts))
    return title % {"count": len(alerts), "run": plain(run.name)}, "\n".join(lines)


def _told(channel: Channel, alert: Alert) -> list[str]:
    cause = alert.cause_zh if channel.language.startswith("zh") and alert.cause_zh else alert.cause
    return [*([plain(cause)] if cause else []), settings.SITE_URL + alert.get_absolute_url()]
