"""Sends notices through Apprise: at least once, tried again with longer and longer waits, given up in the end."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from datetime import timedelta
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.db.models import F
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.alerts.wording import headline

WAITS = [timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240)]
"""After the first, second ... failure; after the last one follows giving up."""
CLAIM = timedelta(minutes=2)

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
    if settings.NOTICE_HOSTS_DENIED and _leads_inside(address):
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
    delivery = Delivery.objects.select_related("channel__project", "alert__capture__run").get(pk=delivery_id)
    error = send(delivery.channel, delivery.alert)
    now = timezone.now()
    if error is None:
        Delivery.objects.filter(pk=delivery_id).update(sent=now, error="")
    elif delivery.attempts > len(WAITS) or delivery.alert is None:
        Delivery.objects.filter(pk=delivery_id).update(gave_up=True, error=error)
    else:
        Delivery.objects.filter(pk=delivery_id).update(due=now + WAITS[delivery.attempts - 1], error=error)


def send(channel: Channel, alert: Alert | None) -> str | None:
    """Send one notice, a test when `alert` is None; what went wrong, None when it was taken."""
    import apprise

    with translation.override(channel.language):
        problem = address_problem(channel.url)
        if problem:
            return problem
        title, body = message(channel, alert)
    sender = apprise.Apprise()
    sender.add(channel.url)
    for service in sender:
        service.redirects = False  # the address was checked; where it points to was not
    kind = apprise.NotifyType.INFO if alert is None else apprise.NotifyType.WARNING
    with apprise.LogCapture(level=logging.WARNING) as log:  # type: ignore[no-untyped-call]
        taken = sender.notify(title=title, body=body, notify_type=kind, body_format=apprise.NotifyFormat.TEXT)
        said = log.getvalue().strip()
    return None if taken else (said[-500:] or "The receiver did not take it.")


def message(channel: Channel, alert: Alert | None) -> tuple[str, str]:
    """Title and text in the active language."""
    if alert is None:
        title = _("Stepscope: a test notice of %(project)s") % {"project": channel.project.name}
        return title, _("Alerts of this project will arrive here.") + f"\n{settings.SITE_URL}/"
    cause = alert.cause_zh if channel.language.startswith("zh") and alert.cause_zh else alert.cause
    lines = [f"{channel.project.name} / {alert.capture.run.name} / {alert.capture.key}", cause]
    lines.append(settings.SITE_URL + alert.capture.get_absolute_url())
    return headline(alert), "\n".join(line for line in lines if line)


def _leads_inside(address: str) -> bool:
    host = urlsplit(address).hostname
    if not host:
        return False
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    addresses = [ipaddress.ip_address(str(one).partition("%")[0]) for one in found]
    return any(one.is_loopback or one.is_link_local or one.is_unspecified or one.is_multicast for one in addresses)
