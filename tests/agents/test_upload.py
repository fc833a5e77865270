from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import tracemalloc

import pytest
from stepscope_agent.cli import _checklist
from stepscope_agent.transport import Transport

from agent_double import TOKEN, Server
from agent_dumps import write, write_torch

MEBIBYTE = 1024 * 1024


def announced(server):
    return [dump["ask"] for dump in server.state.dumps.values()]


def big_dump(tmp_path, size):
    root = write_torch(tmp_path / "job", rank=0)
    content = bytes(bytearray(range(256))) * (size // 256)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "memory_record.csv"), content)
    return content


def test_a_folder_of_two_ranks_arrives_as_one_capture(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0, stamp="20260101120000123")
    write_torch(tmp_path / "job", rank=1, stamp="20260101120000456")
    code, out, err = run_agent("upload", str(tmp_path / "job"), "--run", "Llama2 7B, graph mode")
    assert code == 0
    assert out == ""
    assert "2 dumps arrived" in err
    assert list(server.state.runs) == ["Llama2-7B-graph-mode"]
    dumps = server.state.dumps.values()
    assert [(dump["capture"], dump["rank"], dump["state"]) for dump in dumps] == [
        ("20260101120000123", 0, "uploaded"),
        ("20260101120000123", 1, "uploaded"),
    ]
    kernels = server.state.content("ASCEND_PROFILER_OUTPUT/kernel_details.csv")
    assert kernels.startswith(b"Step Id,Name,Type")


def test_the_announcement_tells_what_is_known_and_nothing_else(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=3, stamp="20260101120000123")
    run_agent("upload", str(tmp_path / "job"), "--run", "r")
    ask = announced(server)[0]
    ask.pop("files")
    assert ask == {
        "capture": "20260101120000123",
        "rank": 3,
        "replace": False,
        "host": "host01",
        "framework": "torch_npu",
        "folder": "host01_4245_20260101120000123_ascend_pt",
        "captured_at": "2026-01-01T12:00:00Z",
    }


def test_the_chip_can_be_named_where_a_dump_does_not_tell(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r", "--soc", "Ascend910B3")[0] == 0
    assert server.state.runs["r"]["meta"]["soc"] == "Ascend910B3"


def test_repeating_an_upload_sends_no_byte_again(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    before = server.state.count("PATCH", "/files/")
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert server.state.count("PATCH", "/files/") == before
    assert len(server.state.dumps) == 1


def test_the_trace_stays_unless_asked_for(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0, trace=True)
    run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert not any("trace_view" in row["name"] for row in announced(server)[0]["files"])
    run_agent("upload", str(tmp_path / "job"), "--run", "r", "--with-trace", "--replace")
    assert server.state.content("ASCEND_PROFILER_OUTPUT/trace_view.json") == b"[]"


def test_a_connection_cut_inside_a_body_resumes_at_the_servers_offset(run_agent, server, tmp_path):
    content = big_dump(tmp_path, 6 * MEBIBYTE)
    server.state.fail("PATCH", "/files/", cut_after=MEBIBYTE)
    server.state.fail("PATCH", "/files/", cut_after=MEBIBYTE)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 0, err
    assert server.state.content("ASCEND_PROFILER_OUTPUT/memory_record.csv") == content


def test_an_answer_lost_after_the_bytes_were_stored_does_not_send_them_twice(run_agent, server, tmp_path):
    content = big_dump(tmp_path, 6 * MEBIBYTE)
    server.state.fail("PATCH", "/files/", lost_answer=True, times=1)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 0, err
    assert server.state.content("ASCEND_PROFILER_OUTPUT/memory_record.csv") == content
    total = sum(row["size"] for row in announced(server)[0]["files"])
    assert server.state.patched == total


@pytest.mark.parametrize(
    "path", ["/projects/demo/runs", "/runs/17/dumps", "/dumps/5/complete", "/files$"], ids=lambda text: text[1:8]
)
@pytest.mark.parametrize("how", [{"status": 500}, {"status": 503}, {"lost_answer": True}, {"cut_after": 0}], ids=str)
def test_each_call_survives_a_passing_trouble(run_agent, server, tmp_path, path, how):
    write_torch(tmp_path / "job", rank=0)
    server.state.fail("POST", path, **how)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 0, err
    assert [dump["state"] for dump in server.state.dumps.values()] == ["uploaded"]


def test_damaged_bytes_are_sent_again(run_agent, server, tmp_path):
    content = big_dump(tmp_path, 5 * MEBIBYTE)
    server.state.fail("PATCH", "/files/", status=460, times=2)
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert server.state.content("ASCEND_PROFILER_OUTPUT/memory_record.csv") == content


def test_bytes_that_never_arrive_whole_are_given_up(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    server.state.fail("PATCH", "/files/", status=460, times=1000)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 4
    assert "does not take byte 0" in err


def test_a_busy_server_is_asked_again_after_the_time_it_names(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    server.state.fail("POST", "/dumps/5/complete", status=429, headers={"Retry-After": "1"})
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 0
    assert "trying again in 1 s" in err


def test_chunks_are_of_4_to_16_mebibytes(run_agent, server, tmp_path):
    big_dump(tmp_path, 40 * MEBIBYTE)
    run_agent("upload", str(tmp_path / "job"), "--run", "r")
    large = [size for size in server.state.chunk_sizes if size >= MEBIBYTE]
    assert [size // MEBIBYTE for size in large] == [4, 8, 16, 12]


def test_an_upload_interrupted_for_good_goes_on_in_the_next_run(run_agent, server, tmp_path):
    content = big_dump(tmp_path, 10 * MEBIBYTE)
    server.state.fail("PATCH", "/files/", status=403)  # this one is final; the uploads made so far stay
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 4
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert server.state.content("ASCEND_PROFILER_OUTPUT/memory_record.csv") == content


def test_an_empty_file_arrives(run_agent, server, tmp_path):
    root = write_torch(tmp_path / "job", rank=0)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "hbm.csv"), "")
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert server.state.content("ASCEND_PROFILER_OUTPUT/hbm.csv") == b""


def test_a_file_that_changes_while_it_is_sent_is_named(run_agent, server, tmp_path):
    root = write_torch(tmp_path / "job", rank=0)
    path = os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv")
    real = server.state.fault_for

    def grow_at_announcement(method, where, length):
        if method == "POST" and where.endswith("/dumps"):
            with open(path, "a") as stream:
                stream.write("one more\n")
        return real(method, where, length)

    server.state.fault_for = grow_at_announcement
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 2
    assert "kernel_details.csv changed size while it was being sent" in err


def test_a_dump_that_is_gone_does_not_keep_the_other_rank_here(run_agent, server, tmp_path):
    root = write_torch(tmp_path / "job", rank=0)
    write_torch(tmp_path / "job", rank=1)
    real = server.state.fault_for

    def remove_at_announcement(method, where, length):
        path = os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv")
        if method == "POST" and where.endswith("/dumps") and os.path.exists(path):
            os.unlink(path)
        return real(method, where, length)

    server.state.fault_for = remove_at_announcement
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 2
    assert "can no longer be read" in err
    assert [dump["state"] for dump in server.state.dumps.values()] == ["receiving", "uploaded"]


def test_a_wrong_token_is_refused_with_the_servers_words(run_agent, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    code, out, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", token="other")
    assert (code, out) == (4, "")
    assert "this token is unknown, expired or revoked" in err


def test_a_file_over_the_servers_limit_is_refused(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    server.state.limit = 100
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 4
    assert "kernel_details.csv is too large" in err


def test_other_content_for_a_known_rank_needs_replace(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0, rows=3)
    run_agent("upload", str(tmp_path / "job"), "--run", "r")
    write_torch(tmp_path / "job", rank=0, rows=4)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 4
    assert "other content" in err
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r", "--replace")[0] == 0


def test_a_server_that_is_not_there_is_exit_code_3(run_agent, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % probe.getsockname()[1]
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--retry-for", "0.2", url=url)
    assert code == 3
    assert "connection refused" in err


def test_time_running_out_is_exit_code_5(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    server.state.capture_states = ["digesting"]
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--wait", "--timeout", "2")
    assert code == 5
    assert "has not ended in time" in err


@pytest.mark.parametrize("arguments", [["upload"], [], ["upload", "/nonexistent", "--run", "r"]], ids=len)
def test_wrong_usage_is_exit_code_2(arguments):
    done = agent(
        *arguments, env={"STEPSCOPE_SERVER": "http://127.0.0.1:9", "STEPSCOPE_TOKEN": "t", "STEPSCOPE_PROJECT": "p"}
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_folder_without_dumps_is_exit_code_2(run_agent, tmp_path):
    code, _, err = run_agent("upload", str(tmp_path), "--run", "r")
    assert code == 2
    assert "nothing to upload" in err


def test_a_missing_setting_is_named(monkeypatch, capfd, tmp_path):
    from stepscope_agent.cli import main

    write_torch(tmp_path / "job", rank=0)
    assert main(["upload", str(tmp_path / "job"), "--run", "r", "--project", "p", "--server", "http://x"]) == 2
    assert "no token given: use --token, STEPSCOPE_TOKEN, or `token = ...`" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\ufeff[stepscope]\ntoken = agent-token  # of node01\n", None),  # as an editor of another system leaves it
        ('[stepscope]\ntoken = "agent-token"  # TOML\n', None),
        ("[stepscope]\n", "`token = ...` under [stepscope] in "),
        ("token = agent-token\n", "has no line [stepscope] above its settings"),
        ("[stepscope]\ntoken\n", "is not an INI or TOML file"),
    ],
)
def test_what_is_wrong_with_a_settings_file_is_named(server, monkeypatch, capfd, tmp_path, text, told):
    from stepscope_agent.cli import main

    monkeypatch.setenv("STEPSCOPE_STATE", str(tmp_path / "state"))
    write(tmp_path / "agent.ini", text)
    write_torch(tmp_path / "job", rank=0)
    given = ["--run", "r", "--project", "demo", "--server", server.url, "--settings", str(tmp_path / "agent.ini")]
    code, said = main(["upload", str(tmp_path / "job")] + given), capfd.readouterr().err
    assert (code, told or "1 dump arrived") == (2 if told else 0, told or "1 dump arrived")
    assert (told or "1 dump arrived") in said


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--every", "often", "'often' is not a number"),
        ("--every", "0", "must be more than 0"),
        ("--quiet", "-1", "must not be less than 0"),
        ("--limit-rate", "nan", "must not be less than 0, nor endless"),
    ],
)
def test_a_number_that_is_none_is_named(capfd, option, value, told):
    from stepscope_agent.cli import main

    with pytest.raises(SystemExit):
        main(["watch", ".", "%s=%s" % (option, value)])
    assert told in capfd.readouterr().err


def test_settings_come_from_the_environment(server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    env = {"STEPSCOPE_SERVER": server.url, "STEPSCOPE_TOKEN": "agent-token", "STEPSCOPE_PROJECT": "demo"}
    done = agent("upload", str(tmp_path / "job"), "--run", "r", env=dict(env, STEPSCOPE_STATE=str(tmp_path / "state")))
    assert done.returncode == 0, done.stderr
    assert len(server.state.dumps) == 1


def test_wait_prints_page_and_checklist(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    code, out, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--wait")
    assert code == 0
    assert server.url + "/captures/1/" in out
    assert "checklist: 1 passed, 1 failed, 0 unknown" in out
    assert out.index("dtype_cast") < out.index("graph_sink")
    assert "digesting" in err


def test_json_prints_the_report_and_nothing_else(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    code, out, _ = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--json")
    assert code == 0
    assert json.loads(out) == {"schema": 1, "checklist": {"passed": 1}}


def test_a_failed_analysis_is_exit_code_1(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    server.state.capture_states = ["failed"]
    code, out, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--json")
    assert (code, out) == (1, "")
    assert "the analysis failed" in err


def test_a_capture_that_was_not_judged_tells_no_counts():
    nothing = {"passed": None, "failed": None, "unknown": None, "items": []}
    told = list(_checklist({"key": "step-1", "url": "/captures/1/", "checklist": nothing}))
    assert told == ["step-1 /captures/1/"]


def test_step_records_alone_go_to_the_run_that_the_callback_was_told(run_agent, server, tmp_path):
    write(tmp_path / "job" / "stepscope_run.json", {"schema": 1, "run": "llama"})
    write(tmp_path / "job" / "stepscope_steps_rank_0.jsonl", '{"step": 3, "loss": 1.5}\n')
    code, _, _ = run_agent("upload", str(tmp_path / "job"))
    assert (code, list(server.state.runs), list(server.state.steps["callback"])) == (0, ["llama"], [3])


def test_config_and_log_go_with_the_run(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    config = write(tmp_path / "run.yaml", "seed: 0\nhub_token: abc123\n")
    log = write(tmp_path / "worker.log", "step 1/25, loss: 15.9, per_step_time: 577ms\nstep 2/25, loss: 15.1\n")
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--config", config, "--log", log)
    assert code == 0
    assert server.state.configs["r"] == {"name": "run.yaml", "text": 'seed: 0\nhub_token: "***"\n'}
    assert server.state.steps["log"] == {
        1: {"step": 1, "loss": 15.9, "step_time_ms": 577.0},
        2: {"step": 2, "loss": 15.1},
    }
    assert "2 step records" in err


def test_a_log_alone_can_be_sent(run_agent, server, tmp_path):
    log = write(tmp_path / "worker.log", "".join("step %d/9000, loss: 1.5\n" % step for step in range(1, 7001)))
    assert run_agent("upload", str(tmp_path), "--run", "r", "--log", log)[0] == 0
    assert len(server.state.steps["log"]) == 7000
    assert server.state.count("POST", "/steps") == 2


def test_records_and_metadata_of_the_callback_go_with_the_dump(run_agent, server, tmp_path):
    root = write_torch(tmp_path / "job", rank=0)
    meta = {"schema": 1, "framework": "mindspore", "mode": "graph", "sink": False, "rank": 0, "world_size": 2}
    write(os.path.join(root, "stepscope_run.json"), meta)
    write(os.path.join(root, ".complete.json"), {"schema": 1, "state": "complete", "first_step": 100, "last_step": 102})
    write(os.path.join(root, "stepscope_steps.jsonl"), '{"step": 1, "loss": 2.5, "data_wait_ms": 1}\n{"step": 2, "lo')
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert server.state.runs["r"]["meta"] == {"framework": "mindspore", "mode": "graph", "sink": False, "world_size": 2}
    ask = announced(server)[0]
    assert (ask["capture"], ask["window"]) == ("step-100", {"first_step": 100, "last_step": 102})
    assert server.state.steps["callback"] == {1: {"step": 1, "loss": 2.5}}


def test_the_servers_public_name_in_locations_is_not_followed(run_agent, server, tmp_path):
    # the double answers with http://public-name.example/...; the token must go to the address given and no other
    write_torch(tmp_path / "job", rank=0)
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0


def test_a_server_below_a_path_is_found(run_agent, tmp_path):
    below = Server(prefix="/stepscope")
    try:
        write_torch(tmp_path / "job", rank=0)
        assert run_agent("upload", str(tmp_path / "job"), "--run", "r", url=below.url)[0] == 0
        assert len(below.state.blobs) == 3
    finally:
        below.stop()


def test_a_redirect_is_named_and_not_followed(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    server.state.fail("POST", "/projects/demo/runs", status=301, headers={"Location": "https://elsewhere.example/"})
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert code == 4
    assert "https://elsewhere.example/" in err


class Proxy(threading.Thread):
    """A forward proxy: CONNECT tunnels, and absolute addresses passed on."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.seen = []
        self.start()

    @property
    def url(self):
        return "http://user:p%%40ss@127.0.0.1:%d" % self.listener.getsockname()[1]

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            part = client.recv(65536)
            if not part:
                return
            head += part
        self.seen.append(head.decode("latin-1"))
        method, target, _ = head.split(b" ", 2)
        address = target if method == b"CONNECT" else target.split(b"/")[2]
        host, _, port = address.decode().rpartition(":")
        upstream = socket.create_connection((host, int(port)))
        if method == b"CONNECT":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            upstream.sendall(head)
        threading.Thread(target=pipe, args=(client, upstream), daemon=True).start()
        pipe(upstream, client)


def pipe(source, target):
    with source, target:
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    return
                target.sendall(data)
        except OSError:
            pass


@pytest.fixture
def proxy():
    running = Proxy()
    yield running
    running.listener.close()


LOGIN = "Proxy-Authorization: Basic " + base64.b64encode(b"user:p@ss").decode()


def test_http_goes_through_the_proxy_of_the_environment(run_agent, server, tmp_path, monkeypatch, proxy):
    write_torch(tmp_path / "job", rank=0)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert proxy.seen[0].startswith("POST %s/api/v1/projects/demo/runs HTTP/1.1" % server.url)
    assert LOGIN in proxy.seen[0]


def test_no_proxy_names_hosts_that_are_reached_directly(run_agent, tmp_path, monkeypatch, proxy):
    write_torch(tmp_path / "job", rank=0)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert proxy.seen == []


@pytest.fixture
def tls_server(tmp_path):
    """A server with a certificate of its own making; (server, the certificate's path)."""
    certificate, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl here to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(certificate), str(key))
    running = Server(tls=context)
    yield running, str(certificate)
    running.stop()


def test_a_private_ca_is_trusted_when_given(run_agent, tls_server, tmp_path):
    server, certificate = tls_server
    write_torch(tmp_path / "job", rank=0)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--ca", certificate, url=server.url)
    assert code == 0, err


def test_an_unknown_certificate_is_refused_at_once(run_agent, tls_server, tmp_path):
    server, _ = tls_server
    write_torch(tmp_path / "job", rank=0)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", url=server.url)
    assert code == 3
    assert "is not trusted" in err
    assert "--ca FILE" in err


def test_https_goes_through_a_connect_tunnel(run_agent, tls_server, tmp_path, monkeypatch, proxy):
    server, certificate = tls_server
    write_torch(tmp_path / "job", rank=0)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--ca", certificate, url=server.url)
    assert code == 0, err
    assert proxy.seen[0].startswith("CONNECT 127.0.0.1:")
    assert LOGIN in proxy.seen[0]
    assert "Bearer" not in "".join(proxy.seen)


def agent(*arguments, env=None, program=None):
    """The agent as a process of its own."""
    import stepscope_agent

    path = os.path.dirname(os.path.dirname(stepscope_agent.__file__))
    command = [sys.executable] + ([program] if program else ["-m", "stepscope_agent"]) + list(arguments)
    surroundings = dict({"PATH": os.environ["PATH"], "PYTHONPATH": path}, **(env or {}))
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60)


def test_settings_come_from_an_ini_file_last(server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    text = "[stepscope]\nserver = %s\ntoken = agent-token\nproject = wrong\n" % server.url
    settings = write(tmp_path / "agent.ini", text)
    env = {"STEPSCOPE_PROJECT": "demo", "STEPSCOPE_STATE": str(tmp_path / "state")}
    done = agent("upload", str(tmp_path / "job"), "--run", "r", "--settings", settings, env=env)
    assert done.returncode == 0, done.stderr
    assert len(server.state.dumps) == 1


@pytest.mark.parametrize("content", ["server = x", b"\xff\xfe", "[stepscope\n"])
def test_a_spoilt_settings_file_is_named(tmp_path, content):
    write_torch(tmp_path / "job", rank=0)
    settings = write(tmp_path / "agent.ini", content)
    done = agent("upload", str(tmp_path / "job"), "--run", "r", "--settings", settings)
    assert done.returncode == 2
    assert settings in done.stderr
    assert "Traceback" not in done.stderr


def test_the_run_may_be_told_by_the_callback(run_agent, server, tmp_path):
    root = write_torch(tmp_path / "job", rank=0)
    write(os.path.join(root, "stepscope_run.json"), {"run": "Llama2 7B", "mode": "graph"})
    assert run_agent("upload", str(tmp_path / "job"))[0] == 0
    assert server.state.runs["Llama2-7B"]["name"] == "Llama2 7B"


def test_without_any_name_of_a_run_it_is_asked_for(run_agent, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    code, _, err = run_agent("upload", str(tmp_path / "job"))
    assert code == 2
    assert "give --run NAME" in err


def test_an_answer_takes_the_memory_of_its_bytes_only(server):
    """Old Pythons set aside as much as read() is allowed to give."""
    http = Transport(server.url, TOKEN)
    tracemalloc.start()
    http.call("GET", "/captures/1")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    http.close()
    assert peak < 2 * 1024 * 1024
