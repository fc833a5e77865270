"""When a weekly digest is due, on the clock of its readers' time zone. No queries here."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

WEEK = timedelta(days=7)


def zone_names() -> list[str]:
    """Names of the time zones that this machine knows; UTC is the first."""
    return ["UTC", *sorted(available_timezones() - {"UTC", "localtime"})]


def zone_of(name: str) -> ZoneInfo:
    """The zone; UTC for one that an update of the machine has taken away."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def moment_of(day: date, hour: int, zone: str) -> datetime:
    """That day and hour there, in UTC. Of an hour that occurs twice the first; one that is left out comes later."""
    return datetime.combine(day, time(hour), zone_of(zone)).astimezone(UTC)


def newest_moment(now: datetime, weekday: int, hour: int, zone: str) -> datetime:
    """The last time up to `now` at which it was `weekday` (0: Monday) and `hour` there."""
    here = now.astimezone(zone_of(zone)).date()
    day = here - timedelta(days=(here.weekday() - weekday) % 7)
    found = moment_of(day, hour, zone)
    return found if found <= now else moment_of(day - WEEK, hour, zone)


def next_moment(now: datetime, weekday: int, hour: int, zone: str, last: datetime | None) -> datetime:
    """The first such time after `now` that lies in another calendar week than `last`, the time before."""
    newest = newest_moment(now, weekday, hour, zone)
    day = newest.astimezone(zone_of(zone)).date() + WEEK
    if last is not None and _monday(day) <= _monday(last.astimezone(zone_of(zone)).date()):
        day += WEEK
    return moment_of(day, hour, zone)


def week_before(end: datetime, zone: str) -> datetime:
    """The same time of the clock there seven days before."""
    return (end.astimezone(zone_of(zone)) - WEEK).astimezone(UTC)


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())
