from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.utils import timezone

from dashboard.accounts.models import Member, Project, Role, User
from dashboard.alerts.evaluate import evaluate
from dashboard.alerts.models import Alert, AlertState, Channel, Delivery
from dashboard.alerts.notices import WAITS, deliver
from dashboard.runs.models import Capture, CaptureState, ChecklistResult, Run

pytestmark = pytest.mark.django_db
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="gpt", name="GPT")


@pytest.fixture
def member(project) -> User:
    user = User.objects.create_user("mia")
    Member.objects.create(project=project, user=user, role=Role.MEMBER)
    return user


@pytest.fixture
def owner(project) -> User:
    user = User.objects.create_user("olga")
    Member.objects.create(project=project, user=user, role=Role.OWNER)
    return user


@pytest.fixture
def receiver():
    """A real HTTP server on loopback that keeps what it is sent; `answers` holds the statuses it gives first."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.got.append(json.loads(body))
            self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.url = f"json://127.0.0.1:{server.server_port}/hook"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def capture(project, day, run="run", **fields) -> Capture:
    """A ready capture of `day`, comparable with the others unless told otherwise."""
    row, _ = Run.objects.get_or_create(project=project, key=run, defaults={"name": run})
    values = {"world_size": 8, "config_fingerprint": "7b", "peak_tflops": 353.9, "peak_dtype": "bf16", **fields}
    values.setdefault("state", CaptureState.READY)
    return Capture.objects.create(run=row, key=f"step-{day}", captured_at=START + timedelta(days=day), **values)


def series(project, **values) -> list[list[str]]:
    """Evaluates one capture per value in turn; what each raised."""
    (name, numbers), found = next(iter(values.items())), []
    for day, number in enumerate(numbers):
        found.append([alert.metric for alert in look(capture(project, day, run=f"run-{day}", **{name: number}))])
    return found


def look(one: Capture) -> list[Alert]:
    return evaluate(one, lambda delivery_id: None)


def test_a_regression_makes_one_alert_with_old_and_new_value(project):
    before = capture(project, 1, run="a", cast_ratio=0.03, mfu=0.41)
    after = capture(project, 2, run="b", cast_ratio=0.08, mfu=0.38)
    assert {alert.metric for alert in look(after)} == {"cast_ratio", "mfu"}
    assert {alert.metric for alert in look(after)} == {"cast_ratio", "mfu"}
    assert Alert.objects.count() == 2
    cast = Alert.objects.get(metric="cast_ratio")
    assert (cast.project, cast.previous, cast.capture) == (project, before, after)
    assert (cast.old_value, cast.new_value, cast.change) == (0.03, 0.08, pytest.approx(0.05))
    assert Alert.objects.get(metric="mfu").change == pytest.approx(-3 / 41)


def test_the_first_capture_and_better_ones_raise_nothing(project):
    assert series(project, cast_ratio=[0.12, 0.11, 0.03]) == [[], [], []]


def test_the_same_level_is_not_told_again(project):
    assert series(project, cast_ratio=[0.03, 0.08, 0.081, 0.08]) == [[], ["cast_ratio"], [], []]


def test_one_better_capture_between_does_not_repeat_an_alert_and_two_do(project):
    assert series(project, mfu=[0.40, 0.36, 0.40, 0.36]) == [[], ["mfu"], [], []]
    other = Project.objects.create(slug="other", name="Other")
    assert series(other, mfu=[0.40, 0.36, 0.40, 0.40, 0.36]) == [[], ["mfu"], [], [], ["mfu"]]


def test_a_level_worse_than_the_one_told_is_told(project):
    assert series(project, mfu=[0.40, 0.38, 0.36]) == [[], ["mfu"], ["mfu"]]


def test_a_false_alarm_does_not_silence_the_next_one_and_an_expected_change_does(project):
    for state, expected in ((AlertState.FALSE_ALARM, 1), (AlertState.EXPECTED, 0)):
        Capture.objects.all().delete()
        series(project, mfu=[0.40, 0.36, 0.40])
        Alert.objects.update(state=state)
        assert len(look(capture(project, 9, mfu=0.36))) == expected


@pytest.mark.parametrize(
    "other",
    [
        {"world_size": 16},
        {"config_fingerprint": "13b"},
        {"peak_tflops": 280.0},
        {"peak_dtype": "fp16"},
        {"state": CaptureState.FAILED},
    ],
)
def test_captures_that_cannot_be_compared_raise_nothing(project, other):
    capture(project, 1, cast_ratio=0.01, **other)
    assert look(capture(project, 2, cast_ratio=0.2)) == []


def test_without_a_known_model_only_the_same_run_is_comparable(project):
    capture(project, 1, run="a", config_fingerprint="", cast_ratio=0.01)
    assert look(capture(project, 2, run="b", config_fingerprint="", cast_ratio=0.2)) == []
    assert len(look(capture(project, 3, run="a", config_fingerprint="", cast_ratio=0.2))) == 1


def test_another_project_is_not_comparable(project):
    capture(Project.objects.create(slug="other", name="Other"), 1, cast_ratio=0.01)
    assert look(capture(project, 2, cast_ratio=0.2)) == []


def test_mfu_of_another_formula_is_not_compared(project):
    capture(project, 1, mfu=0.4, flops_formula="megatron_causal", cast_ratio=0.01)
    assert [one.metric for one in look(capture(project, 2, mfu=0.2, flops_formula="other", cast_ratio=0.2))] == [
        "cast_ratio"
    ]


def test_a_late_capture_is_held_against_the_one_taken_before_it(project):
    capture(project, 1, cast_ratio=0.02)
    capture(project, 9, cast_ratio=0.3)
    assert look(capture(project, 5, cast_ratio=0.04))[0].old_value == 0.02


def test_a_checklist_item_that_passed_and_fails_is_told_with_unknown_left_unknown(project):
    for day, status in ((1, "pass"), (2, "fail")):
        one = capture(project, day)
        ChecklistResult.objects.create(capture=one, run=one.run, item="fused_attention", status=status)
    alert = look(one)[0]
    assert (alert.metric, alert.old_value, alert.new_value) == ("item:fused_attention", None, None)


def test_an_alert_that_a_second_look_does_not_find_is_dropped(project):
    capture(project, 1, cast_ratio=0.03)
    after = capture(project, 2, cast_ratio=0.08)
    look(after)
    after.cast_ratio = 0.03
    assert look(after) == []
    assert not Alert.objects.exists()


def test_the_notice_reaches_a_real_receiver_once(project, receiver, django_capture_on_commit_callbacks):
    Channel.objects.create(project=project, name="hook", url=receiver.url)
    Channel.objects.create(project=project, name="off", url=receiver.url, active=False)
    capture(project, 1, cast_ratio=0.03)
    after = capture(project, 2, run="after-upgrade", cast_ratio=0.12)
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            evaluate(after, deliver)
    deliver(Delivery.objects.get().pk)
    assert len(receiver.got) == 1
    assert receiver.got[0]["title"] == "Cast share 3.0\u202f% -> 12.0\u202f% (+9.0 points)"
    assert receiver.got[0]["message"].splitlines()[0] == "GPT / after-upgrade / step-2"
    assert f"/captures/{after.pk}/" in receiver.got[0]["message"]
    assert Delivery.objects.get().sent is not None


def test_a_failed_notice_is_tried_again_later_and_given_up_in_the_end(project, receiver):
    receiver.answers = [500] * (len(WAITS) + 1)
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    capture(project, 1, cast_ratio=0.03)
    alert = Alert.objects.create(project=project, capture=capture(project, 2), metric="cast_ratio", new_value=0.1)
    delivery = Delivery.objects.create(alert=alert, channel=channel)
    for wait in WAITS:
        before = timezone.now()
        deliver(delivery.pk)
        delivery.refresh_from_db()
        assert before + wait <= delivery.due <= timezone.now() + wait
        assert not delivery.gave_up and delivery.error
        deliver(delivery.pk)  # not due: nothing happens
        Delivery.objects.update(due=timezone.now())
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert (delivery.attempts, delivery.gave_up, delivery.sent) == (len(WAITS) + 1, True, None)
    assert len(receiver.got) == len(WAITS) + 1


def test_a_receiver_that_comes_back_gets_the_notice(project, receiver):
    receiver.answers = [503]
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    alert = Alert.objects.create(project=project, capture=capture(project, 2), metric="mfu", new_value=0.1)
    delivery = Delivery.objects.create(alert=alert, channel=channel)
    deliver(delivery.pk)
    Delivery.objects.update(due=timezone.now())
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert delivery.sent is not None and delivery.error == ""


def test_a_chinese_channel_is_told_in_chinese(project, receiver):
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url, language="zh-hans")
    alert = Alert.objects.create(
        project=project, capture=capture(project, 2), metric="mfu", new_value=0.1, cause="Cast.", cause_zh="转换。"
    )
    deliver(Delivery.objects.create(alert=alert, channel=channel).pk)
    assert "转换。" in receiver.got[0]["message"]


def test_an_owner_adds_a_channel_and_tests_it(client, project, owner, receiver, django_capture_on_commit_callbacks):
    client.force_login(owner)
    client.post("/projects/gpt/channels/new/", {"name": "hook", "url": receiver.url, "language": "en"})
    channel = project.channels.get()
    client.post(f"/projects/gpt/channels/{channel.pk}/test/")
    deliver(Delivery.objects.get(channel=channel, alert=None).pk)
    assert receiver.got[0]["title"] == "Stepscope: a test notice of GPT"
    page = client.get("/projects/gpt/channels/").content.decode()
    assert "hook" in page and "Sent" in page


@pytest.mark.parametrize(
    "address",
    [
        "not an address",
        "http://example.com/",
        "file:///etc/passwd",
        "dbus://",
        "syslog://",
        "workflows://host/workflow/signature/?template=/etc/passwd",
        "mailto://u:p@example.com?pgpkey=/etc/shadow",
        "fcm://project/x?keyfile=/etc/passwd",
    ],
)
def test_addresses_that_reach_into_the_server_are_refused(client, project, owner, address):
    client.force_login(owner)
    answer = client.post("/projects/gpt/channels/new/", {"name": "x", "url": address, "language": "en"})
    assert answer.status_code == 422
    assert not project.channels.exists()


@pytest.mark.parametrize(
    "address", ["json://127.0.0.1:9", "json://localhost", "json://169.254.169.254", "json://[::1]"]
)
def test_an_operator_can_deny_addresses_inside(client, project, owner, settings, address):
    settings.NOTICE_HOSTS_DENIED = True
    client.force_login(owner)
    answer = client.post("/projects/gpt/channels/new/", {"name": "x", "url": address, "language": "en"})
    assert answer.status_code == 422


def test_members_see_channels_without_their_secrets_and_cannot_change_them(client, project, member, owner):
    channel = Channel.objects.create(
        project=project, name="hook", url="slack://TokenAAAA/TokenBBBB/TokenCCCC12345678901234"
    )
    client.force_login(member)
    page = client.get("/projects/gpt/channels/").content.decode()
    assert "hook" in page and "TokenAAAA" not in page and "TokenBBBB" not in page
    for path in ("new", f"{channel.pk}/test", f"{channel.pk}/switch", f"{channel.pk}/delete"):
        assert client.post(f"/projects/gpt/channels/{path}/").status_code == 403


def test_the_inbox_shows_only_alerts_of_my_projects(client, project, member):
    other = Project.objects.create(slug="other", name="Other")
    Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", old_value=0.4, new_value=0.3)
    foreign = Alert.objects.create(project=other, capture=capture(other, 1), metric="mfu", old_value=0.9, new_value=0.7)
    client.force_login(member)
    page = client.get("/alerts/").content.decode()
    assert "40.0" in page and "90.0" not in page
    assert client.post(f"/alerts/{foreign.pk}/decide/", {"state": "expected"}).status_code == 404


def test_a_member_decides_and_a_viewer_does_not(client, project, member):
    alert = Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", new_value=0.3)
    client.force_login(member)
    client.post(f"/alerts/{alert.pk}/decide/", {"state": "expected", "note": "new data set"})
    alert.refresh_from_db()
    assert (alert.state, alert.note, alert.decided_by) == ("expected", "new data set", member)
    viewer = User.objects.create_user("victor")
    Member.objects.create(project=project, user=viewer, role=Role.VIEWER)
    client.force_login(viewer)
    assert client.post(f"/alerts/{alert.pk}/decide/", {"state": "open"}).status_code == 403
    assert client.get("/alerts/?state=all").status_code == 200


def test_after_a_decision_nobody_is_led_to_another_site(client, project, member):
    alert = Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", new_value=0.3)
    client.force_login(member)
    answer = client.post(f"/alerts/{alert.pk}/decide/", {"state": "expected", "next": "https://evil.example/"})
    assert answer.url == "/alerts/"


def test_the_inbox_asks_few_questions_however_many_alerts(client, project, member, django_assert_max_num_queries):
    for day in range(30):
        Alert.objects.create(project=project, capture=capture(project, day), metric="mfu", new_value=0.3)
    client.force_login(member)
    with django_assert_max_num_queries(12):
        client.get("/alerts/")
