"""Sends notices through Apprise: at least once, tried again with longer and longer waits, given up in the end."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings
from django.db.models import F
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.alerts.outbound import leads_inside, only_outside
from dashboard.alerts.wording import headline
from dashboard.runs.templatetags.units import NARROW

WAITS = [timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240)]
"""After the first, second ... failure; after the last one follows giving up."""
CLAIM = timedelta(minutes=2)
MOST_TEXT = 600
SHORTEST_SECRET = 4
LONG = ("capture__report", "capture__run__meta", "capture__run__config_text")
MARKUP = {"<": "‹", ">": "›", "@": "＠", "](": "] (", "://": ": //", "`": "'"}
"""What chats read as tags, mentions, links or code, and what reads the same but does nothing."""

SCHEMAS = (
    *("json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos", "feishu", "lark", "dingtalk", "wecombot"),
    *("slack", "discord", "workflow", "workflows", "gchat", "tgram", "mmost", "mmosts", "rocket", "rockets", "zulip"),
    *("matrix", "matrixs", "wxteams", "ntfy", "ntfys", "gotify", "gotifys", "bark", "barks", "pushplus", "schan"),
    *("pagerduty", "opsgenie"),
)
# Apprise would read these from the server's own disk.
LOCAL_FILES = re.compile(r"template|keyfile|pgp|cert|attach|config", re.IGNORECASE)


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
    alerts = list(delivery.alerts.select_related("capture__run").defer(*LONG).order_by("id"))
    if not alerts and not delivery.is_test:
        delivery.delete()  # what it would have told of was dropped or deleted
        return
    error = send(delivery.channel, alerts)
    now = timezone.now()
    if error is None:
        Delivery.objects.filter(pk=delivery_id).update(sent=now, error="")
    elif delivery.attempts > len(WAITS) or delivery.is_test:
        Delivery.objects.filter(pk=delivery_id).update(gave_up=True, error=error)
    else:
        Delivery.objects.filter(pk=delivery_id).update(due=now + WAITS[delivery.attempts - 1], error=error)


def send(channel: Channel, alerts: Sequence[Alert]) -> str | None:
    """Send one notice of all these, a test when there are none; what went wrong, None when it was taken."""
    import apprise

    with translation.override(channel.language):
        problem = address_problem(channel.url)
        if problem:
            return problem
        title, body = message(channel, alerts)
    sender = apprise.Apprise()
    sender.add(channel.url)
    for service in sender:
        service.redirects = False  # the address was checked; where it points to was not
    kind = apprise.NotifyType.WARNING if alerts else apprise.NotifyType.INFO
    with apprise.LogCapture(level=logging.WARNING) as log, only_outside():  # type: ignore[no-untyped-call]
        taken = sender.notify(title=title, body=body, notify_type=kind, body_format=apprise.NotifyFormat.TEXT)
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
    return [*([plain(cause)] if cause else []), settings.SITE_URL + alert_address(alert)]


def alert_address(alert: Alert) -> str:
    """Where the alert stands in the inbox, whatever its state."""
    return f"{reverse('alerts:inbox')}?alert={alert.pk}"


def plain(text: str) -> str:
    """`text` on one line, without what a chat would take for markup, a mention or a link."""
    kept = (" " if unicodedata.category(one)[0] in "CZ" and one != NARROW else one for one in text)
    line = re.sub(" +", " ", "".join(kept)).strip()
    for mark, harmless in MARKUP.items():
        line = line.replace(mark, harmless)
    return line[:MOST_TEXT]
