"""The weekly digest: when it comes, what it tells, and that each channel gets it once a week."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.alerts.models import Alert, AlertState, Channel, Delivery, WeeklyDigest
from dashboard.alerts.notices import deliver, queue_weekly
from dashboard.alerts.rules import BY_METRIC, better_by_effect
from dashboard.alerts.schedule import newest_moment, next_moment, week_before
from dashboard.alerts.weekly import Week, week_of
from dashboard.alerts.weekly_words import Digest, Line, Section, as_text, digest_of, fitted
from dashboard.runs.models import Assignment, Capture, ChecklistResult, Run, Waiver
from dashboard.runs.rollup import update_run
from tests.dashboard.alert_data import START, capture, member, owner, project, receiver
from tests.dashboard.mail_server import MailServer, mail_server
from tests.factories import make_dump, make_project

__all__ = ["member", "owner", "project", "receiver"]
pytestmark = pytest.mark.django_db
END = START + timedelta(days=14)  # Thursday 2026-01-15, 00:00 UTC; the week begins on day 7, the one before on day 0
HOUR_NS = 3_600_000_000_000
SHANGHAI, BERLIN = "Asia/Shanghai", "Europe/Berlin"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("now", "zone", "newest", "following"),
    [
        # Monday 30 November, 09:00 in Shanghai is 01:00 UTC
        (utc(2026, 11, 30, 0, 59), SHANGHAI, utc(2026, 11, 23, 1), utc(2026, 11, 30, 1)),
        (utc(2026, 11, 30, 1, 0), SHANGHAI, utc(2026, 11, 30, 1), utc(2026, 12, 7, 1)),
        (utc(2026, 12, 6, 23, 0), SHANGHAI, utc(2026, 11, 30, 1), utc(2026, 12, 7, 1)),  # Monday morning there already
        # Berlin goes from +2 to +1 on 25 October
        (utc(2026, 10, 20, 12), BERLIN, utc(2026, 10, 19, 7), utc(2026, 10, 26, 8)),
    ],
)
def test_it_comes_on_its_day_and_hour_in_its_time_zone(now, zone, newest, following):
    assert newest_moment(now, 0, 9, zone) == newest
    assert next_moment(now, 0, 9, zone, None) == following


def test_an_hour_that_a_zone_leaves_out_comes_an_hour_later_and_one_that_it_has_twice_once():
    spring, autumn = utc(2026, 3, 29, 0), utc(2026, 10, 25, 0)  # Sundays
    assert next_moment(spring, 6, 2, BERLIN, None) == utc(2026, 3, 29, 1)  # 02:00 is 03:00 summer time
    first = next_moment(autumn - timedelta(hours=1), 6, 2, BERLIN, None)
    assert first == utc(2026, 10, 25, 0)  # 02:00 summer time; 02:00 winter time is at 01:00 UTC
    assert next_moment(first, 6, 2, BERLIN, first) == utc(2026, 11, 1, 1)


def test_a_changed_day_brings_no_second_digest_in_a_week():
    told = utc(2026, 11, 30, 9)
    assert next_moment(told + timedelta(hours=1), 1, 9, "UTC", told) == utc(2026, 12, 8, 9)  # Tuesday of the next week
    assert next_moment(told + timedelta(hours=1), 0, 10, "UTC", told) == utc(2026, 12, 7, 10)


def test_a_week_is_seven_days_on_the_clock():
    assert week_before(utc(2026, 10, 26, 8), BERLIN) == utc(2026, 10, 19, 7)


@pytest.mark.parametrize(
    ("metric", "old", "new", "better"),
    [
        ("mfu", 0.30, 0.31, True),
        ("mfu", 0.30, 0.305, False),
        ("mfu", None, 0.5, False),
        ("cast_ratio", 0.05, 0.03, True),
        ("step_time_ns", 1000, 969, True),
        ("step_time_ns", 1000, 980, False),
        ("device_ratio", 0.8, 0.7, False),
    ],
)
def test_better_is_the_opposite_of_worse(metric, old, new, better):
    assert better_by_effect(BY_METRIC[metric], old, new) is better


def week(project: Any) -> Week:
    return week_of(project, END, "UTC")


def told(project: Any) -> dict[str, list[str]]:
    """Texts of the lines by the title of their section."""
    return {section.title: [line.text for line in section.lines] for section in digest_of(week(project)).sections}


def rolled(one: Capture, **fields: Any) -> Capture:
    """The capture, its run brought up to it: a run's own numbers are its newest capture's."""
    update_run(one.run_id)
    Run.objects.filter(pk=one.run_id).update(**fields)
    return one


def test_a_quiet_week_tells_nothing(project):
    capture(project, 3)
    assert week(project).is_quiet and told(project) == {}
    assert digest_of(week(project)).title == "GPT, week to 2026-01-15: nothing happened"


def test_hours_are_told_with_their_causes_and_what_is_unknown(project):
    """8 cards x 10 steps x 1 h = 80 NPU-hours: 40 % peak, 30 % above it, 10 % communication, 15 % free, 5 % bubble."""
    shares = {"mfu": 0.4, "compute_ratio": 0.7, "exposed_communication_ratio": 0.1, "device_ratio": 0.85}
    for name, day, steps in (("a", 8, 10), ("b", 9, None), ("earlier", 2, 5)):
        one = capture(project, day, run=name, step_time_ns=HOUR_NS, recoverable_ns=HOUR_NS // 4, **shares)
        rolled(one, world_size=8, steps_run=steps)
    assert told(project)["NPU-hours"] == [
        "80.0 by 2 runs; not known of 1 of them; the week before 40.0",
        "Lost: Computing below the peak 24.0 (30.0\u202f%); Free 12.0 (15.0\u202f%); "
        "Exposed communication 8.00 (10.0\u202f%); Pipeline bubble 4.00 (5.0\u202f%)",
        "Could be won: 20.0 (25.0\u202f%)",
    ]


def test_hours_that_no_run_tells_are_unknown(project):
    rolled(capture(project, 8), step_time_ns=None)
    assert told(project)["NPU-hours"] == ["unknown by 1 run"]


def test_hours_of_which_nobody_knows_the_use_are_not_called_lost(project):
    rolled(capture(project, 8, step_time_ns=HOUR_NS), world_size=8, steps_run=10)
    assert told(project)["NPU-hours"] == ["80.0 by 1 run", "Nobody can tell: Not known 80.0 (100\u202f%)"]


def test_mfu_is_held_against_the_median_of_the_week_before(project):
    for day, value in ((1, 0.30), (2, 0.32), (3, 0.40), (8, 0.36), (9, 0.34)):
        capture(project, day, run="llama", mfu=value)
    # medians 0.32 and 0.35: (0.35 - 0.32) / 0.32
    assert told(project)["MFU"] == ["llama, 8 cards: 32.0\u202f% → 35.0\u202f% (+9.4\u202f%)"]


@pytest.mark.parametrize(
    "other",
    [{"peak_tflops": 313.0}, {"peak_dtype": "fp16"}, {"flops_formula": "other"}, {"config_fingerprint": "13b"},
     {"world_size": 16}],
)  # fmt: skip
def test_mfu_is_never_held_against_another_denominator(project, other):
    capture(project, 1, run="llama", mfu=0.5, **other)
    capture(project, 8, run="llama", mfu=0.3)
    assert told(project)["MFU"] == ["llama, 8 cards: 30.0\u202f%; nothing the week before that it may be compared with"]


def test_captures_of_an_unknown_model_are_held_against_their_own_run_alone(project):
    for day, run, value in ((1, "a", 0.5), (8, "b", 0.3), (2, "c", 0.2), (9, "c", 0.25)):
        capture(project, day, run=run, mfu=value, config_fingerprint="")
    assert told(project)["MFU"] == [
        "b, 8 cards: 30.0\u202f%; nothing the week before that it may be compared with",
        "c, 8 cards: 20.0\u202f% → 25.0\u202f% (+25.0\u202f%)",
    ]


def test_an_unknown_mfu_is_said_to_be_unknown(project):
    capture(project, 8)
    assert told(project)["MFU"] == ["Unknown of 1 capture"]


def alert(project: Any, day: float, **fields: Any) -> Alert:
    run = fields.pop("run", "slow")
    row = Run.objects.filter(project=project, key=run).first()
    one = row.captures.first() if row else capture(project, 8, run=run)
    known = {"metric": "mfu", "old_value": 0.4, "new_value": 0.36, "change": -0.1, **fields}
    return Alert.objects.create(project=project, capture=one, created=START + timedelta(days=day), **known)


def test_what_got_worse_is_told_with_who_owns_it(project, member, owner):
    alert(project, 8)
    alert(project, 9, metric="device_ratio", assignee=member, change=-0.1, old_value=0.9, new_value=0.8)
    alert(project, 9, metric="cast_ratio", state=AlertState.FALSE_ALARM)
    alert(project, 9, metric="step_time_ns", state=AlertState.EXPECTED, old_value=1e9, new_value=2e9, change=1)
    alert(project, 9, metric="peak_memory_bytes", state=AlertState.ACKNOWLEDGED, decided_by=owner, change=None)
    alert(project, 6, run="older")
    alert(project, 6, run="older", metric="cast_ratio", assignee=member)
    alert(project, 6, run="older", metric="device_ratio", state=AlertState.ACKNOWLEDGED)
    lines = told(project)["Got worse"]
    assert lines[0] == "MFU \u221210.0\u202f% since slow (40.0\u202f% → 36.0\u202f%); nobody owns it"
    assert [line.rpartition("; ")[2] for line in lines[:-1]] == [
        "nobody owns it", "owner: mia", "an expected change", "owner: olga"
    ]  # fmt: skip
    assert lines[-1] == "2 older alerts are open, 1 of them without an owner"


def test_what_got_better_is_told_once_and_as_far_as_the_projects_rules_call_it_a_change(project):
    before = {"mfu": 0.3, "step_time_ns": 1_000_000, "cast_ratio": 0.06, "device_ratio": 0.80}
    now = {"mfu": 0.4, "step_time_ns": 800_000, "cast_ratio": 0.04, "device_ratio": 0.82}
    capture(project, 1, run="llama", **before)
    capture(project, 8, run="llama", **now)
    found = told(project)
    # A better MFU says the step time; two points of device ratio are less than the rule's three.
    assert found["Got better"] == ["Cast share of llama, 8 cards: 6.0\u202f% → 4.0\u202f% (\u22122.0 points)"]
    assert "+33.3" in found["MFU"][0]


def result(one: Capture, item: str, status: str, **fields: Any) -> ChecklistResult:
    return ChecklistResult.objects.create(capture=one, run=one.run, item=item, status=status, **fields)


def test_violations_that_opened_closed_and_are_waived_for_not_much_longer(project, member):
    old = capture(project, 1, run="old")
    new = capture(project, 8, run="new")
    Run.objects.update(model_name="llama")
    for item, was, is_now in (
        ("dtype_cast", "pass", "fail"),
        ("graph_sink", "fail", "pass"),
        ("fused_attention", "fail", "fail"),
        ("attention_mask", "unknown", "fail"),
        ("ffn_parallel", "fail", "unknown"),  # neither open nor closed: nobody knows
    ):
        result(old, item, was, latest=True)
        result(new, item, is_now, latest=True, lost_ns=7.2e12 if item == "dtype_cast" else None)
    Assignment.objects.create(run=new.run, item="dtype_cast", owner=member)
    for item, days in (("fused_attention", 14), ("attention_mask", 15), ("graph_sink", 3)):
        Waiver.objects.create(run=new.run, item=item, owner=member, expires=END.date() + timedelta(days=days))
    lines = told(project)["Violations"]
    # open: of the old run 3 that fail, of the new one 3, two of which are waived in 2026-01 whatever the day is now
    assert lines[0].startswith("2 opened, 1 closed, ")
    assert lines[1:] == [
        "Fused attention of new: the waiver of mia ends on 2026-01-29",
        "Opened: Uniform dtype, since new; 2.00 NPU-hours so far; owner: mia",
        "Opened: Attention mask, since new; owner: mia",
        "Closed: Graph mode and sink, since new",
    ]


def test_a_waiver_of_every_run_of_a_model_is_told_while_any_of_them_fails(project, member):
    old, new = capture(project, 1, run="old"), capture(project, 8, run="new")
    Run.objects.update(model_name="llama")
    Run.objects.filter(pk=old.run_id).update(archived=True)
    Waiver.objects.create(run=old.run, item="dtype_cast", owner=member, expires=END.date(), every_run=True)
    result(new, "dtype_cast", "pass", latest=True)
    assert "Violations" not in told(project)
    ChecklistResult.objects.update(status="fail")
    assert told(project)["Violations"][1] == "Uniform dtype of every run of llama: the waiver of mia ends on 2026-01-15"


def test_a_violation_that_an_alert_tells_is_counted_and_not_told_again(project):
    one = capture(project, 8, run="new")
    result(one, "dtype_cast", "fail", latest=True)
    alert(project, 8, run="new", metric="item:dtype_cast")
    found = told(project)
    assert found["Violations"] == ["1 opened, 0 closed, 1 open over all runs"]
    assert found["Got worse"] == ["Uniform dtype: fails since new, passed before; nobody owns it"]


def test_runs_without_a_profile(project):
    for name, day, profiled in (("a", 8, False), ("b", 9, True), ("c", 3, False), ("d", 8, False)):
        run = Run.objects.create(project=project, key=name, name=name, archived=name == "d")
        Run.objects.filter(pk=run.pk).update(created=START + timedelta(days=day))
        if profiled:
            capture(project, day, run=name)
    assert told(project)["Runs without a profile"] == ["a"]


def test_a_card_that_was_slow_again(project):
    for day in (1, 2, 8):
        one = capture(project, day, run=f"run-{day}")
        make_dump(one, rank=0, host="n1", device_id=3, slow=True)
        make_dump(one, rank=1, host="n1", device_id=4, slow=day < 7)  # not this week
    assert told(project)["Cards that keep being slow"] == ["n1 NPU 3: slow in 3 of 3 captures"]


def test_other_projects_are_not_in_it(project):
    other = make_project("other")
    one = capture(other, 8, mfu=0.3)
    result(one, "dtype_cast", "fail", latest=True)
    alert(other, 8)
    assert week(project).is_quiet and told(project) == {}


def test_a_digest_takes_a_fixed_number_of_queries(project, django_assert_max_num_queries):
    for day in range(14):
        one = capture(project, day, run=f"run-{day}", mfu=0.3 + day / 100)
        result(one, "dtype_cast", "fail" if day > 6 else "pass", latest=True)
    with django_assert_max_num_queries(20):
        digest_of(week(project))


def test_each_line_leads_somewhere(client, project, owner):
    one = rolled(capture(project, 8, run="new", mfu=0.4, step_time_ns=HOUR_NS), world_size=8, steps_run=10)
    result(one, "dtype_cast", "fail", latest=True)
    alert(project, 8, run="new")
    Run.objects.create(project=project, key="bare", name="bare")
    Run.objects.filter(key="bare").update(created=START + timedelta(days=8))
    client.force_login(owner)
    paths = {line.path for section in digest_of(week(project)).sections for line in section.lines}
    assert len(paths) >= 6
    assert {client.get(path).status_code for path in paths} == {200}


def test_names_bring_no_markup_into_it(project):
    capture(project, 8, run="x", mfu=0.3)
    Run.objects.update(model_name="<at id=all></at> [x](http://evil.example)")
    (line,) = told(project)["MFU"]
    assert "<" not in line and "](" not in line and "http://" not in line


def digest(lines: int) -> Digest:
    return Digest("t", "about", [Section("One", [Line(f"line {n}", f"/{n}") for n in range(lines)], "/all")])


def test_what_a_section_has_no_room_for_is_counted():
    assert as_text(digest(3), "http://s", 2) == (
        "about\n\nOne\n- line 0\n  http://s/0\n- line 1\n  http://s/1\n- and 1 more\n  http://s/all"
    )
    assert as_text(digest(2), "http://s", 2).count("more") == 0


@pytest.mark.parametrize("room", [2048, 120, 60, 10])
def test_a_digest_is_as_long_as_its_service_takes(room):
    text = fitted(digest(20), "http://s", room)
    assert len(text.encode()) <= room
    assert ("line 0" in text) == (room > 60) and ("more" in text) == (room > 60)


@pytest.fixture
def mail(settings: Any) -> Iterator[MailServer]:
    settings.NOTICE_LOOPBACK_ALLOWED = True
    with mail_server() as server:
        yield server


def plan(project: Any, url: str, due: datetime | None = None, **fields: Any) -> WeeklyDigest:
    language = fields.pop("language", "en")
    channel = Channel.objects.create(project=project, name="lead", url=url, language=language)
    return WeeklyDigest.objects.create(channel=channel, enabled=True, due=due or timezone.now(), **fields)


def new_alert(project: Any) -> Alert:
    one = capture(project, 0, run="slow")
    values = {"metric": "mfu", "old_value": 0.4, "new_value": 0.36, "change": -0.1}
    return Alert.objects.create(project=project, capture=one, created=timezone.now() - timedelta(days=9), **values)


def moved_to(now: datetime, **fields: Any) -> None:
    """Alerts into the week that ends at `now`."""
    Alert.objects.update(created=now - timedelta(hours=1), **fields)


def test_mail_gets_it_as_simple_html(project, mail, django_capture_on_commit_callbacks):
    one = plan(project, mail.url)
    new_alert(project)
    moved_to(newest_moment(timezone.now(), 0, 9, "UTC"))
    with django_capture_on_commit_callbacks(execute=True):
        queue_weekly(one.pk, deliver)
    (message,) = mail.got
    assert message["Subject"].startswith("GPT, week to ") and message["Subject"].endswith(": 1 thing got worse")
    html = message.get_body(("html",)).get_content()
    assert f'/alerts/?alert={Alert.objects.get().pk}">MFU \u221210.0\u202f% since slow' in html
    assert "<style" not in html and "MFU \u221210.0" in message.get_body(("plain",)).get_content()
    assert Delivery.objects.get().sent is not None


def test_mail_that_is_asked_for_as_text_has_its_links(project, mail, django_capture_on_commit_callbacks):
    one = plan(project, mail.url + "&format=text")
    new_alert(project)
    moved_to(newest_moment(timezone.now(), 0, 9, "UTC"))
    with django_capture_on_commit_callbacks(execute=True):
        queue_weekly(one.pk, deliver)
    (message,) = mail.got
    assert message.get_content_type() == "text/plain"
    assert f"/alerts/?alert={Alert.objects.get().pk}" in message.get_content()


def test_a_webhook_gets_text_in_the_channels_language(project, receiver):
    one = plan(project, receiver.url, language="zh-hans")
    new_alert(project)
    moved_to(timezone.now())
    deliver(Delivery.objects.create(channel=one.channel, week_end=timezone.now()).pk)
    (got,) = receiver.got
    assert "周" in got["title"] and "无人负责" in got["message"]
    assert f"/alerts/?alert={Alert.objects.get().pk}" in got["message"]


def test_a_week_is_told_once_however_often_the_clock_comes(project, receiver, django_capture_on_commit_callbacks):
    one = plan(project, receiver.url, even_quiet=True)
    for _ in range(3):
        with django_capture_on_commit_callbacks(execute=True):
            queue_weekly(one.pk, deliver)
    assert len(receiver.got) == 1
    one.refresh_from_db()
    assert one.last == newest_moment(timezone.now(), 0, 9, "UTC") and one.due == one.last + timedelta(days=7)


def test_of_weeks_that_the_clock_missed_the_last_is_told(project, receiver):
    one = plan(project, receiver.url, due=timezone.now() - timedelta(days=30))
    queue_weekly(one.pk, lambda delivery_id: None)
    assert Delivery.objects.get().week_end == newest_moment(timezone.now(), 0, 9, "UTC")
    one.refresh_from_db()
    assert one.due > timezone.now()


def test_a_channel_that_is_off_is_told_nothing_and_nothing_late(client, project, owner, receiver):
    one = plan(project, receiver.url)
    Channel.objects.update(active=False)
    queue_weekly(one.pk, lambda delivery_id: None)
    client.force_login(owner)
    client.post(f"/projects/gpt/channels/{one.pk}/switch/")
    queue_weekly(one.pk, lambda delivery_id: None)
    assert not Delivery.objects.exists()
    one.refresh_from_db()
    assert one.due > timezone.now()


def test_nothing_is_sent_of_a_quiet_week_and_the_log_says_so(client, project, owner, receiver):
    one = plan(project, receiver.url)
    delivery = Delivery.objects.create(channel=one.channel, week_end=END)
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert receiver.got == [] and delivery.quiet
    client.force_login(owner)
    assert "Nothing happened, nothing sent" in client.get("/projects/gpt/channels/").content.decode()


def test_a_quiet_week_is_told_where_that_is_wished(project, receiver):
    one = plan(project, receiver.url, even_quiet=True)
    deliver(Delivery.objects.create(channel=one.channel, week_end=END).pk)
    assert receiver.got[0]["title"] == "GPT, week to 2026-01-15: nothing happened"


def test_a_digest_that_no_receiver_takes_is_tried_again(project, mail):
    mail.refuses = True
    one = plan(project, mail.url, even_quiet=True)
    delivery = Delivery.objects.create(channel=one.channel, week_end=END)
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert mail.got == [] and delivery.sent is None and delivery.due > timezone.now()
    mail.refuses = False
    Delivery.objects.update(due=timezone.now())
    deliver(delivery.pk)
    assert len(mail.got) == 1


SAVED = {"enabled": "on", "day": "2", "hour": "18", "zone": SHANGHAI}


def test_an_owner_switches_it_on_and_off(client, project, owner):
    channel = Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/x")
    client.force_login(owner)
    assert client.post(f"/projects/gpt/channels/{channel.pk}/weekly/save/", SAVED).status_code == 302
    saved = WeeklyDigest.objects.get()
    assert saved.due == next_moment(timezone.now(), 2, 18, SHANGHAI, None) and not saved.even_quiet
    assert "Wednesday 18:00, Asia/Shanghai" in client.get("/projects/gpt/channels/").content.decode()
    client.post(f"/projects/gpt/channels/{channel.pk}/weekly/save/", {**SAVED, "enabled": ""})
    saved.refresh_from_db()
    assert saved.due is None and saved.hour == 18


@pytest.mark.parametrize("wrong", [{"zone": "Mars/Olympus"}, {"hour": "24"}, {"day": "7"}, {"day": "x"}])
def test_a_time_that_there_is_not_is_refused(client, project, owner, wrong):
    channel = Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/x")
    client.force_login(owner)
    assert client.post(f"/projects/gpt/channels/{channel.pk}/weekly/save/", {**SAVED, **wrong}).status_code == 422
    assert not WeeklyDigest.objects.filter(enabled=True).exists()


def test_the_page_shows_what_the_test_sends(client, project, owner, receiver):
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    new_alert(project)
    moved_to(timezone.now())
    client.force_login(owner)
    page = client.get(f"/projects/gpt/channels/{channel.pk}/weekly/")
    client.post(f"/projects/gpt/channels/{channel.pk}/weekly/test/")
    deliver(Delivery.objects.get(is_test=True).pk)
    (got,) = receiver.got
    shown = page.context["notice"]
    assert got["title"] == f"Test: {shown.title}"
    assert got["message"].partition("\n")[2] == shown.text.partition("\n")[2]  # but for the minute it was made in
    assert "MFU \u221210.0" in page.content.decode() and "1 thing got worse" in shown.title


def test_the_page_shows_mail_as_it_will_look_and_says_where_nothing_would_be_sent(client, project, owner):
    channel = Channel.objects.create(project=project, name="mail", url="mailto://u:p@mail.example.com?to=x@example.com")
    client.force_login(owner)
    page = client.get(f"/projects/gpt/channels/{channel.pk}/weekly/").content.decode()
    assert "it would not be sent" in page
    new_alert(project)
    moved_to(timezone.now())
    page = client.get(f"/projects/gpt/channels/{channel.pk}/weekly/").content.decode()
    assert "it would not be sent" not in page and "<h3>Got worse</h3>" in page


def test_members_see_it_and_cannot_change_it_and_strangers_find_nothing(client, project, member, owner):
    channel = Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/SecretToken")
    path = f"/projects/gpt/channels/{channel.pk}/weekly/"
    other = make_project("other", owner=owner)
    client.force_login(member)
    page = client.get(path).content.decode()
    assert "SecretToken" not in page and '<form method="post" action="/projects' not in page
    assert {client.post(f"{path}{name}/", SAVED).status_code for name in ("save", "test")} == {403}
    client.force_login(make_project("x", owner=None) and owner)
    assert client.get(f"/projects/{other.slug}/channels/{channel.pk}/weekly/").status_code == 404
    assert client.post(f"/projects/{other.slug}/channels/{channel.pk}/weekly/save/", SAVED).status_code == 404


def test_the_page_of_a_chinese_channel_speaks_the_readers_language_around_it(client, project, owner):
    channel = Channel.objects.create(
        project=project, name="hook", url="jsons://hooks.example.com/x", language="zh-hans"
    )
    client.force_login(owner)
    page = client.get(f"/projects/gpt/channels/{channel.pk}/weekly/").content.decode()
    assert "As it would be sent now" in page and "GPT 周报" in page
