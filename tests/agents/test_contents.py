"""Small files of a dump in one request: where the server takes that, and without harm where it does not."""

from __future__ import annotations

import pytest
from stepscope_agent import client
from stepscope_agent.contents import LARGEST_GROUP, groups
from stepscope_agent.errors import FileChanged, Refused, Unreachable
from stepscope_agent.link import Link, Offer
from stepscope_agent.manifest import FileEntry, sha256_of
from stepscope_agent.transport import Transport

from agent_double import TOKEN
from agent_dumps import write

TABLE = b"".join(b"1,MatMul%d,MatMulV2,AI_CORE\n" % n for n in range(2000))
FILES = {
    "ASCEND_PROFILER_OUTPUT/kernel_details.csv": TABLE,
    "ASCEND_PROFILER_OUTPUT/step_trace_time.csv": b"Step,Computing\n1,2\n",
    "profiler_info_0.json": b"{}",
    "profiler_metadata.json": b"",
}


class Sender:
    def __init__(self, server, folder, files):
        self.server, self.files = server, files
        self.entries = []
        for number, (name, content) in enumerate(files.items()):
            path = write(folder / str(number), content)
            self.entries.append(FileEntry(name, path, len(content), sha256_of(path)))
        self.http = Transport(server.url, TOKEN, retry_for=5, sleep=lambda seconds: None)
        self.told = 0

    def send(self):
        run = client.open_run(self.http, "demo", "r", "r", {}, None)
        payload = {"capture": "c", "rank": 0, "files": [entry.row() for entry in self.entries]}
        return client.send_dump(self.http, int(run["id"]), payload, self.entries, self.hear)

    def hear(self, count):
        self.told += count

    def arrived(self):
        return all(self.server.state.content(name) == content for name, content in self.files.items())

    def counts(self):
        return [
            self.server.state.count(*call) for call in (("POST", "/contents$"), ("POST", "/files$"), ("PATCH", "/"))
        ]


@pytest.fixture
def make(server, tmp_path):
    made = []
    server.state.says_contents = server.state.takes_contents = True

    def sender(files=FILES):
        made.append(Sender(server, tmp_path / str(len(made)), files))
        return made[-1]

    yield sender
    for one in made:
        one.http.close()


def test_a_dump_of_small_files_takes_one_request_for_its_bytes(make):
    sender = make()
    assert sender.send()["state"] == "uploaded"
    assert sender.arrived()
    assert sender.counts() == [1, 0, 0]
    assert sender.told == sum(map(len, FILES.values()))


def test_a_large_file_goes_by_itself(make):
    files = dict(FILES, **{"FRAMEWORK/large.json": bytes(LARGEST_GROUP + 1)})
    sender = make(files)
    sender.send()
    assert sender.arrived()
    assert sender.counts()[:2] == [1, 1]
    assert sender.told == sum(map(len, files.values()))


def test_a_server_that_does_not_speak_of_it_gets_file_after_file(make, server):
    server.state.says_contents = server.state.takes_contents = False
    sender = make()
    sender.send()
    assert sender.arrived()
    assert sender.counts() == [0, len(FILES), len(FILES)]


def test_an_older_server_behind_the_same_address_gets_file_after_file(make, server):
    server.state.takes_contents = False
    sender = make()
    sender.send()
    assert sender.arrived()
    assert sender.counts() == [1, len(FILES), len(FILES)]


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 500}, {"status": 429}, {"cut_after": 1000}, {"lost_answer": True}]
)
def test_after_a_passing_trouble_it_is_sent_again(make, server, fault):
    server.state.fail("POST", "/contents$", times=2, **fault)
    sender = make()
    sender.send()
    assert sender.arrived()
    assert sender.told == sum(map(len, FILES.values()))


def test_bytes_damaged_on_the_way_are_sent_again(make, server):
    server.state.fail("POST", "/contents$", status=460)
    sender = make()
    sender.send()
    assert sender.arrived()


def test_a_server_that_stays_away_is_said(make, server):
    server.state.fail("POST", "/contents$", status=503, times=10_000)
    sender = make()
    sender.http.retry_for = 0.0
    with pytest.raises(Unreachable):
        sender.send()


def test_a_wait_longer_than_one_bears_silence_is_kept_when_the_server_asks_for_it(make, server):
    sender, now = make(), [0.0]
    server.state.fail("POST", "/contents$", status=429, headers={"Retry-After": "45"})
    sender.http.retry_for, sender.http.clock = 20.0, lambda: now.__setitem__(0, now[0] + 0.1) or now[0]
    sender.http.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)
    sender.send()
    assert sender.arrived()
    assert 45 <= now[0] < 60


def test_a_refusal_is_told_in_the_servers_words(make, server):
    server.state.fail("POST", "/contents$", status=413)
    with pytest.raises(Refused, match="made-up trouble"):
        make().send()


def test_a_file_that_changed_since_it_was_announced_is_named(make):
    sender = make()
    entry = sender.entries[1]
    write(entry.path, b"Step,Computing\n9,9\n")
    with pytest.raises(FileChanged, match="changed while"):
        sender.send()
    write(entry.path, b"longer than it was announced")
    with pytest.raises(FileChanged, match="changed size"):
        sender.send()


def test_over_a_capped_link_it_travels_packed(make, server):
    sender = make()
    sender.http.bytes_per_s = 1e12
    server.state.says_gzip = True
    sender.send()
    sender.send()
    assert sender.arrived()
    assert server.state.wire_bytes < len(TABLE)


def test_a_server_that_unpacks_no_more_gets_plain_bytes(make, server):
    server.state.takes_gzip = False
    sender = make()
    sender.http.bytes_per_s = 1e12
    sender.send()
    assert sender.arrived()


def entry(size):
    return FileEntry("%d.csv" % size, "", size, "%064d" % size)


def test_groups_stay_within_what_the_server_offers():
    entries = [entry(size) for size in (5, 0, 6, 4, 11, 3, 3, 3, 2)]
    found, large = groups(entries, Offer(most_bytes=10, most_files=3))
    assert [[one.size for one in group] for group in found] == [[5, 0], [6, 4], [3, 3, 3], [2]]
    assert [one.size for one in large] == [11]
    assert groups(entries, None) == ([], entries)


@pytest.mark.parametrize(
    ("header", "offer"),
    [("8,2", Offer(8, 2)), (" 8 , 2 ", Offer(8, 2)), ("", None), ("8", None), ("8,x", None), ("0,4", None)],
)
def test_only_an_offer_that_is_understood_counts(header, offer):
    link = Link()
    link.hear({"stepscope-contents": header})
    assert link.offer == offer
