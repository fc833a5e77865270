"""gzip on the wire: negotiated, only where it pays, and never at the cost of an exact resume."""

from __future__ import annotations

import os

import pytest
from stepscope_agent import client
from stepscope_agent.errors import FileChanged
from stepscope_agent.link import FAST, MEASURED, REMEMBERED_S, Link, is_local
from stepscope_agent.manifest import FileEntry, sha256_of
from stepscope_agent.transport import Transport

from agent_double import TOKEN
from agent_dumps import write

NAME = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"
TABLE = b"".join(b"1,MatMul%d,MatMulV2,AI_CORE,%d.125\n" % (n, n * 7) for n in range(800000))


class Sender:
    """One file on its way over a link whose bandwidth is capped, so that packing pays."""

    def __init__(self, server, tmp_path, content=TABLE, name=NAME):
        path = write(tmp_path / "file", content)
        self.entry = FileEntry(name, path, len(content), sha256_of(path))
        self.server, self.content = server, content
        self.http = Transport(server.url, TOKEN, retry_for=5, sleep=lambda seconds: None)
        self.http.bytes_per_s = 1e12

    def send(self):
        run = client.open_run(self.http, "demo", "r", "r", {}, None)
        payload = {"capture": "c", "rank": 0, "files": [self.entry.row()]}
        client.send_dump(self.http, int(run["id"]), payload, [self.entry])

    def arrived(self):
        return self.server.state.content(self.entry.name) == self.content


@pytest.fixture
def make(server, tmp_path):
    made = []

    def sender(*arguments, **more):
        made.append(Sender(server, tmp_path, *arguments, **more))
        return made[-1]

    yield sender
    for one in made:
        one.http.close()


@pytest.fixture
def sender(make):
    return make()


def encodings(server):
    return [headers.get("Content-Encoding") for method, _, headers in server.state.calls if method == "PATCH"]


def test_tables_travel_packed(sender, server):
    sender.send()
    assert sender.arrived()
    assert set(encodings(server)) == {"gzip"}
    assert server.state.wire_bytes < len(TABLE) / 3
    assert server.state.patched == len(TABLE)  # each byte once


def test_a_server_that_does_not_speak_of_gzip_gets_plain_bytes(sender, server):
    server.state.says_gzip = server.state.takes_gzip = False
    sender.send()
    assert sender.arrived()
    assert set(encodings(server)) == {None}


def test_an_older_server_behind_the_same_address_gets_plain_bytes(sender, server):
    server.state.takes_gzip = False  # the one that made the upload spoke of it, the one that gets the bytes cannot
    sender.send()
    assert sender.arrived()


def test_a_server_that_refuses_the_encoding_gets_plain_bytes(sender, server):
    server.state.fail("PATCH", "/files/", status=415)
    sender.send()
    assert sender.arrived()
    assert encodings(server)[:2] == ["gzip", None]


@pytest.mark.parametrize("fault", [{"cut_after": 1000}, {"lost_answer": True}, {"status": 500, "times": 3}])
def test_packed_bytes_are_resumed_exactly(sender, server, fault):
    server.state.fail("PATCH", "/files/", **fault)
    sender.send()
    assert sender.arrived()
    assert server.state.patched == len(TABLE)


def test_a_half_sent_file_goes_on_where_it_was(sender, server, make):
    half = make()
    tries = iter([False, True, True])
    real = half.http.once

    def once(method, path, headers, body=b""):
        if method == "PATCH" and next(tries, True):
            raise KeyboardInterrupt
        return real(method, path, headers, body)

    half.http.once = once
    with pytest.raises(KeyboardInterrupt):
        half.send()
    before = server.state.patched
    assert 0 < before < len(TABLE)
    sender.send()
    assert sender.arrived()
    assert server.state.patched == len(TABLE)


def test_packed_files_are_not_packed_again(server, make):
    make(name=NAME + ".gz").send()
    assert set(encodings(server)) == {None}


def test_noise_is_tried_once_and_then_left_plain(server, make):
    noise = make(os.urandom(9 * 2**20))
    noise.send()
    assert noise.arrived()
    assert server.state.wire_bytes == 9 * 2**20
    assert "gzip" not in encodings(server)


def test_a_file_that_changes_while_the_next_chunk_is_made_is_noticed(sender):
    real = sender.http.once

    def once(method, path, headers, body=b""):
        if method == "PATCH":
            with open(sender.entry.path, "ab") as stream:
                stream.write(b"more")
        return real(method, path, headers, body)

    sender.http.once = once
    with pytest.raises(FileChanged):
        sender.send()


def test_the_way_within_a_host_is_left_plain(sender, server):
    sender.http.bytes_per_s = None
    sender.send()
    assert sender.arrived()
    assert set(encodings(server)) == {None}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_slow_way_is_packed_and_a_fast_one_not():
    link = Link(takes_gzip=True, clock=Clock())
    assert link.pays(NAME, 1000, capped=False)  # small files tell nothing of the way, and cost nothing
    assert not link.pays(NAME, MEASURED, capped=False)  # the first large stretch finds out
    link.note(MEASURED, MEASURED / (FAST * 2))
    assert not link.pays(NAME, MEASURED, capped=False)
    link.note(MEASURED, MEASURED / (FAST / 2))
    assert link.pays(NAME, MEASURED, capped=False)
    link.note(1000, 1e-9)  # fitted into a buffer
    assert link.pays(NAME, MEASURED, capped=False)


def test_what_was_measured_is_forgotten_after_a_while():
    link = Link(takes_gzip=True, clock=Clock())
    link.note(MEASURED, 60.0)
    link.clock.now = REMEMBERED_S + 1
    assert not link.pays(NAME, MEASURED, capped=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_names_of_this_host(host):
    assert is_local(host) and not is_local("10.0.0.1")
