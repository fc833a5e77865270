from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.alerts.evaluate import evaluate
from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.alerts.notices import WAITS, deliver, without_secrets
from dashboard.alerts.outbound import Refused, is_inside, only_outside
from dashboard.alerts.tasks import forget_old_deliveries
from dashboard.alerts.wording import plain
from tests.dashboard.alert_data import capture, make_delivery, member, owner, project, receiver

__all__ = ["member", "owner", "project", "receiver"]
pytestmark = pytest.mark.django_db


def raised(project, day=2, **fields) -> Alert:
    return Alert.objects.create(project=project, capture=capture(project, day), metric="mfu", new_value=0.1, **fields)


def test_the_notice_reaches_a_real_receiver_once(project, receiver, django_capture_on_commit_callbacks):
    Channel.objects.create(project=project, name="hook", url=receiver.url)
    Channel.objects.create(project=project, name="off", url=receiver.url, active=False)
    capture(project, 1, cast_ratio=0.03)
    after = capture(project, 2, run="after-upgrade", cast_ratio=0.12)
    confirming = capture(project, 3, run="next", cast_ratio=0.12)
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            evaluate(confirming, deliver)
    deliver(Delivery.objects.get().pk)
    assert len(receiver.got) == 1
    assert receiver.got[0]["title"] == "Cast share +9.0 points since after-upgrade (3.0\u202f% → 12.0\u202f%)"
    assert receiver.got[0]["message"].splitlines()[0] == "GPT / after-upgrade / step-2"
    assert after.alerts.get().pk == int(receiver.got[0]["message"].rpartition("alert=")[2])
    assert Delivery.objects.get().sent is not None


def test_what_one_capture_raises_goes_out_as_one_notice(project, receiver, django_capture_on_commit_callbacks):
    Channel.objects.create(project=project, name="hook", url=receiver.url)
    good, bad = {"mfu": 0.4, "cast_ratio": 0.03}, {"mfu": 0.36, "cast_ratio": 0.08}
    capture(project, 1, run="a", **good)
    capture(project, 2, run="upgrade", **bad)
    with django_capture_on_commit_callbacks(execute=True):
        assert len(evaluate(capture(project, 3, run="c", **bad), deliver)) == 2
    (notice,) = receiver.got
    assert notice["title"] == "2 things got worse: upgrade"
    assert "MFU \u221210.0\u202f% since upgrade" in notice["message"]
    assert "Cast share +5.0 points since upgrade" in notice["message"]
    assert notice["message"].count("?alert=") == 2


def test_a_failed_notice_is_tried_again_later_and_given_up_in_the_end(project, receiver):
    receiver.answers = [500] * (len(WAITS) + 1)
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    delivery = make_delivery(channel, raised(project))
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
    delivery = make_delivery(channel, raised(project))
    deliver(delivery.pk)
    Delivery.objects.update(due=timezone.now())
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert delivery.sent is not None and delivery.error == ""


def test_a_chinese_channel_is_told_in_chinese(project, receiver):
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url, language="zh-hans")
    deliver(make_delivery(channel, raised(project, cause="Cast.", cause_zh="转换。")).pk)
    assert "转换。" in receiver.got[0]["message"]


def test_an_owner_adds_a_channel_and_tests_it(client, project, owner, receiver, django_capture_on_commit_callbacks):
    client.force_login(owner)
    client.post("/projects/gpt/channels/new/", {"name": "hook", "url": receiver.url, "language": "en"})
    channel = project.channels.get()
    client.post(f"/projects/gpt/channels/{channel.pk}/test/")
    deliver(Delivery.objects.get(channel=channel, is_test=True).pk)
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


INSIDE = ["127.0.0.1:9", "localhost", "169.254.169.254", "[::1]", "0.0.0.0", "100.100.100.200", "[::ffff:127.0.0.1]"]


@pytest.mark.parametrize("host", INSIDE)
def test_addresses_inside_are_refused(client, project, owner, host):
    client.force_login(owner)
    data = {"name": "x", "url": f"json://{host}/x", "language": "en"}
    assert client.post("/projects/gpt/channels/new/", data).status_code == 422
    assert not project.channels.exists()


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.1.1", "172.16.0.1", "203.0.113.7", "fd12::1"])
def test_addresses_of_ones_own_network_are_taken(address):
    assert not is_inside(address)


def test_a_name_that_leads_inside_by_the_time_of_sending_is_not_called(project, receiver, settings):
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url.replace("127.0.0.1", "localhost"))
    settings.NOTICE_LOOPBACK_ALLOWED = False
    delivery = make_delivery(channel, raised(project))
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert receiver.got == [] and "this server itself" in delivery.error


def test_no_socket_leads_inside_while_a_notice_is_sent(receiver, settings):
    settings.NOTICE_LOOPBACK_ALLOWED = False
    address = ("127.0.0.1", receiver.server_port)
    with only_outside(), pytest.raises(Refused):
        socket.create_connection(address)
    socket.create_connection(address).close()


def test_a_redirect_is_not_followed(project, receiver):
    receiver.answers, receiver.location = [302], receiver.url.replace("json", "http")
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    delivery = make_delivery(channel, raised(project))
    deliver(delivery.pk)
    delivery.refresh_from_db()
    assert len(receiver.got) == 1 and delivery.sent is None


def test_a_notice_whose_alert_is_gone_is_not_sent(project, receiver):
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    delivery = make_delivery(channel)
    deliver(delivery.pk)
    assert receiver.got == [] and not Delivery.objects.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama2_7b [v2] *best*", "llama2_7b [v2] *best*"),
        ("a\nb\r\n\tc\u2028d\x1b[31m", "a b c d [31m"),
        ("<at id=all></at> @everyone", "‹at id=all›‹/at› ＠everyone"),
        ("[click](https://evil.example)", "[click] (https: //evil.example)"),
        ("`code`", "'code'"),
        ("\u202egnp.exe", "gnp.exe"),
    ],
)
def test_names_in_notices_are_plain_text(text, expected):
    assert plain(text) == expected


def test_a_run_name_brings_no_markup_into_a_notice(project, receiver):
    channel = Channel.objects.create(project=project, name="hook", url=receiver.url)
    alert = raised(project)
    alert.capture.run.name = "<script>x</script>\n# [free](http://evil.example) @all"
    alert.capture.run.save()
    deliver(make_delivery(channel, alert).pk)
    text = receiver.got[0]["title"] + receiver.got[0]["message"].rpartition("\n")[0]
    assert "<" not in text and "](" not in text and "@" not in text and "http://" not in text


def test_the_log_is_kept_as_long_as_the_operator_says(project, settings):
    settings.KEEP_DELIVERIES_DAYS = 90
    channel = Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/x")
    now = timezone.now()
    kept = [make_delivery(channel, sent=now), make_delivery(channel)]
    old = [make_delivery(channel, sent=now), make_delivery(channel, gave_up=True)]
    waiting = make_delivery(channel)
    Delivery.objects.filter(pk__in=[one.pk for one in (*old, waiting)]).update(created=now - timedelta(days=91))
    forget_old_deliveries()
    assert set(Delivery.objects.all()) == {*kept, waiting}


def test_members_see_channels_without_their_secrets_and_cannot_change_them(client, project, member, owner):
    channel = Channel.objects.create(
        project=project, name="hook", url="slack://TokenAAAA/TokenBBBB/TokenCCCC12345678901234"
    )
    client.force_login(member)
    page = client.get("/projects/gpt/channels/").content.decode()
    assert "hook" in page and "TokenAAAA" not in page and "TokenBBBB" not in page
    for path in ("new", f"{channel.pk}/test", f"{channel.pk}/switch", f"{channel.pk}/delete"):
        assert client.post(f"/projects/gpt/channels/{path}/").status_code == 403


def test_the_log_of_deliveries_tells_no_secret_of_the_address(project):
    address = "https://user:pass%40word@hooks.example.com:8443/services/T0123/xoxb-99?token=tok-123&verify=no"
    said = (
        "HTTPSConnectionPool(host='hooks.example.com', port=8443): Max retries exceeded with url: "
        "/services/T0123/xoxb-99?token=tok-123 for user, pass@word (pass%40word)"
    )
    told = without_secrets(said, address)
    assert "hooks.example.com" in told and "Max retries exceeded" in told
    assert not [secret for secret in ("T0123", "xoxb-99", "tok-123", "pass@word", "pass%40word") if secret in told]
