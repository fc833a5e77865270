"""A small server that speaks docs/upload-protocol.md and, on request, misbehaves. Standard library only."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "agent-token"


class State:
    """What the server holds, and the faults it still has to commit."""

    def __init__(self):
        self.lock = threading.Lock()
        self.runs = {}
        self.configs = {}
        self.dumps = {}
        self.uploads = {}
        self.blobs = {}
        self.steps = {}
        self.calls = []
        self.patched = 0
        self.faults = []
        self.chunk_sizes = []
        self.beats = []
        self.requests = []
        self.reports = []
        self.says_gzip = self.takes_gzip = True
        self.says_contents = self.takes_contents = False  # what came later; tests of it switch it on
        self.wire_bytes = 0
        self.limit = None
        self.bad_steps = set()
        self.reference = None
        self.capture_states = ["digesting", "ready"]
        self.report = {"schema": 1, "checklist": {"passed": 1}}
        self.checklist = {
            "passed": 1,
            "failed": 1,
            "unknown": 0,
            "items": [
                {"id": "graph_sink", "status": "pass", "summary": "graph mode with sink"},
                {"id": "dtype_cast", "status": "fail", "summary": "Cast takes 11.7 %, 5 % is the limit"},
            ],
        }

    def fail(self, method, path, **how):
        """The next request that matches suffers `status`, `cut_after` bytes of its body, or a lost answer."""
        self.faults.append(dict(how, method=method, path=re.compile(path)))

    def fault_for(self, method, path, length=0):
        with self.lock:
            for fault in self.faults:
                fits = fault["method"] == method and fault["path"].search(path) and length >= fault.get("cut_after", 0)
                if fits:
                    fault["times"] = fault.get("times", 1) - 1
                    if fault["times"] <= 0:
                        self.faults.remove(fault)
                    return fault
        return None

    def count(self, method, path):
        return sum(1 for row in self.calls if row[0] == method and re.search(path, row[1]))

    def missing(self, dump):
        return [row for row in dump["files"] if row["sha256"] not in self.blobs]

    def content(self, name):
        for dump in self.dumps.values():
            for row in dump["files"]:
                if row["name"] == name:
                    return self.blobs.get(row["sha256"])
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *args):
        pass

    def _any(self):
        state = self.server.state
        path = re.sub(r"^https?://[^/]+", "", self.path)
        state.calls.append((self.command, path, dict(self.headers)))
        length = int(self.headers.get("Content-Length") or 0)
        fault = state.fault_for(self.command, path, length)
        if fault and "cut_after" in fault:
            self._cut(path, self.rfile.read(fault["cut_after"]))
            return
        body = self.rfile.read(length)
        if fault and fault.get("lost_answer"):
            self._answered = False
            self._route(path, body, silent=True)
            self.connection.close()
            self.close_connection = True
            return
        if fault and "status" in fault:
            self._send(
                fault["status"], {"error": {"code": "made_up", "message": "made-up trouble"}}, fault.get("headers")
            )
            return
        self._route(path, body)

    do_GET = do_POST = do_PATCH = do_HEAD = do_DELETE = do_OPTIONS = _any

    def _cut(self, path, part):
        upload = self.server.state.uploads.get(path.rsplit("/", 1)[-1])
        if upload is not None and "Upload-Checksum" not in self.headers:
            upload["data"] += part
        self.connection.close()
        self.close_connection = True

    def _send(self, status, payload=None, headers=None):
        if getattr(self, "silent", False):
            return
        data = json.dumps(payload).encode() if payload is not None else b""
        self.send_response(status)
        self.send_header("Stepscope-Protocol", "1")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.server.state.says_gzip and status == 201:
            self.send_header("Stepscope-Encodings", "gzip")
        if self.server.state.says_contents and (payload or {}).get("dump"):
            self.send_header("Stepscope-Contents", "8388608,64")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status, code, message, **more):
        self._send(status, dict({"error": {"code": code, "message": message}}, **more))

    def _route(self, path, body, silent=False):
        self.silent = silent
        if self.headers.get("Authorization") != "Bearer " + TOKEN:
            return self._refuse(401, "bad_token", "this token is unknown, expired or revoked")
        if self.headers.get("Stepscope-Protocol") != "1":
            return self._refuse(426, "protocol", "protocols spoken here: 1")
        prefix = self.server.prefix + "/api/v1"
        if not path.startswith(prefix):
            return self._refuse(404, "not_found", "no such page")
        path = path[len(prefix) :]
        for method, pattern, handler in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                with self.server.state.lock:
                    return handler(self, self.server.state, body, *match.groups())
        return self._refuse(404, "not_found", "no such thing")

    def open_run(self, state, body, project):
        ask = json.loads(body)
        if project != "demo":
            return self._refuse(404, "not_found", "no such project")
        known = ask["key"] in state.runs
        run = state.runs.setdefault(
            ask["key"], {"id": len(state.runs) + 17, "key": ask["key"], "name": ask.get("name"), "meta": {}}
        )
        run["meta"].update(ask.get("meta") or {})
        run["url"] = "%s/runs/%d/" % (self.server.url, run["id"])
        if ask.get("config"):
            state.configs[ask["key"]] = ask["config"]
        return self._send(200 if known else 201, {"run": run})

    def announce(self, state, body, run_id):
        ask = json.loads(body)
        if state.limit is not None:
            for row in ask["files"]:
                if row["size"] > state.limit:
                    return self._refuse(413, "file_too_large", "%s is too large" % row["name"])
        files = sorted(ask["files"], key=lambda row: row["name"])
        for dump in state.dumps.values():
            if (dump["run"], dump["capture"], dump["rank"]) == (run_id, ask["capture"], ask["rank"]):
                if dump["files"] != files and dump["state"] != "receiving" and not ask.get("replace"):
                    return self._refuse(
                        409, "conflict", "rank %d of %s is here with other content" % (ask["rank"], ask["capture"])
                    )
                dump.update(files=files, ask=ask)
                return self._send(200, {"dump": self.shown(dump), "missing": state.missing(dump)})
        dump = {
            "id": len(state.dumps) + 5,
            "run": run_id,
            "capture": ask["capture"],
            "rank": ask["rank"],
            "files": files,
        }
        dump.update(state="receiving", ask=ask)
        state.dumps[dump["id"]] = dump
        return self._send(201, {"dump": self.shown(dump), "missing": state.missing(dump)})

    def shown(self, dump):
        keys = sorted({row["capture"] for row in self.server.state.dumps.values()} | {dump["capture"]})
        number = keys.index(dump["capture"]) + 1
        capture = {
            "id": number,
            "key": dump["capture"],
            "state": "receiving",
            "url": "%s/captures/%d/" % (self.server.url, number),
        }
        return {"id": dump["id"], "state": dump["state"], "rank": dump["rank"], "error": None, "capture": capture}

    def contents(self, state, body, dump_id):
        if not state.takes_contents:
            return self._refuse(404, "not_found", "there is nothing at this address")
        state.wire_bytes += len(body)
        if self.headers.get("Content-Encoding") == "gzip":
            if not state.takes_gzip:
                return self._refuse(415, "content_type", "no encoding is known here")
            body = zlib.decompress(body, 31)
        sizes = {row["sha256"]: row["size"] for row in state.dumps[int(dump_id)]["files"]}
        found = {}
        for digest in self.headers["Stepscope-Contents"].split(","):
            found[digest], body = body[: sizes[digest]], body[sizes[digest] :]
            if hashlib.sha256(found[digest]).hexdigest() != digest:
                return self._refuse(460, "checksum", "a content differs")
        state.blobs.update(found)
        return self._send(200, {"dump": self.shown(state.dumps[int(dump_id)])})

    def complete(self, state, body, dump_id):
        dump = state.dumps[int(dump_id)]
        missing = state.missing(dump)
        if missing:
            return self._refuse(409, "incomplete", "files are missing", missing=missing)
        dump["state"] = "uploaded"
        return self._send(202, {"dump": self.shown(dump)})

    def create(self, state, body):
        tags = dict(pair.split(" ") for pair in self.headers["Upload-Metadata"].split(","))
        tags = {key: base64.b64decode(value).decode() for key, value in tags.items()}
        size = int(self.headers["Upload-Length"])
        wanted = state.missing(state.dumps[int(tags["dump"])])
        if not any((row["name"], row["sha256"], row["size"]) == (tags["name"], tags["sha256"], size) for row in wanted):
            return self._refuse(409, "conflict", "not a missing file of that dump")
        for key, upload in state.uploads.items():
            if upload["tags"]["sha256"] == tags["sha256"] and upload["tags"]["dump"] == tags["dump"]:
                return self._send(201, headers={"Location": self.address(key)})
        key = str(uuid.uuid4())
        state.uploads[key] = {"tags": tags, "size": size, "data": b""}
        return self._send(201, headers={"Location": self.address(key)})

    def address(self, key):
        return "http://public-name.example%s/api/v1/files/%s" % (self.server.prefix, key)

    def offset(self, state, body, key):
        upload = state.uploads.get(key)
        if upload is None:
            return self._send(404)
        headers = {
            "Upload-Offset": str(len(upload["data"])),
            "Upload-Length": str(upload["size"]),
            "Cache-Control": "no-store",
        }
        return self._send(200, headers=headers)

    def patch(self, state, body, key):
        upload = state.uploads.get(key)
        if upload is None:
            return self._refuse(404, "not_found", "no such upload")
        if self.headers.get("Content-Type") != "application/offset+octet-stream":
            return self._refuse(415, "content_type", "wrong type")
        if int(self.headers["Upload-Offset"]) != len(upload["data"]):
            return self._refuse(409, "offset", "the upload is at %d" % len(upload["data"]))
        state.wire_bytes += len(body)
        if self.headers.get("Content-Encoding") == "gzip" and state.takes_gzip:
            body = zlib.decompress(body, 31)
        kind, _, digest = self.headers.get("Upload-Checksum", "sha256 ").partition(" ")
        if digest and base64.b64decode(digest) != hashlib.sha256(body).digest():
            return self._refuse(460, "checksum", "checksum differs")
        state.chunk_sizes.append(len(body))
        state.patched += len(body)
        upload["data"] += body
        headers = {"Upload-Offset": str(len(upload["data"]))}
        if len(upload["data"]) == upload["size"]:
            del state.uploads[key]
            if hashlib.sha256(upload["data"]).hexdigest() != upload["tags"]["sha256"]:
                return self._refuse(460, "checksum", "the whole file's checksum differs")
            state.blobs[upload["tags"]["sha256"]] = upload["data"]
        return self._send(204, headers=headers)

    def capture(self, state, body, capture_id):
        name = state.capture_states.pop(0) if len(state.capture_states) > 1 else state.capture_states[0]
        url = "%s/captures/%s/" % (self.server.url, capture_id)
        capture = {"id": int(capture_id), "key": "step-100", "state": name, "url": url, "dumps": {"digesting": 1}}
        capture["checklist"] = state.checklist
        return self._send(200, {"capture": capture})

    def whole_report(self, state, body, capture_id):
        return self._send(200, state.report)

    def heartbeat(self, state, body, project):
        state.beats.append(json.loads(body))
        told = {run["key"] for run in state.beats[-1].get("runs", [])}
        open_ones = [row for row in state.requests if row["state"] in ("requested", "accepted", "collecting")]
        return self._send(200, {"every_s": 1, "requests": [row for row in open_ones if row["run_key"] in told]})

    def report(self, state, body, request_id):
        ask = json.loads(body)
        state.reports.append((int(request_id), ask["state"], ask.get("reason", "")))
        row = next((row for row in state.requests if row["id"] == int(request_id)), None)
        if row is None:
            return self._refuse(404, "not_found", "no such capture request")
        if row["state"] not in ("failed", "uploaded"):
            row.update(state=ask["state"], first_step=row["first_step"] or ask.get("first_step"))
        return self._send(200, {"request": row})

    def name_reference(self, state, body, run_id):
        if state.reference not in (None, run_id) and not json.loads(body)["replace"]:
            return self._refuse(409, "conflict", "another run is the reference")
        state.reference = run_id
        return self._send(200, {"run": {"id": int(run_id)}})

    def add_steps(self, state, body, run_id):
        ask = json.loads(body)
        if len(ask["steps"]) > 5000:
            return self._refuse(400, "bad_request", "at most 5000 steps a call")
        if state.bad_steps & {row["step"] for row in ask["steps"]}:
            return self._refuse(400, "bad_request", "a step is not right")
        rows = state.steps.setdefault(ask["source"], {})
        for row in ask["steps"]:
            rows.setdefault(row["step"], {}).update(row)
        return self._send(200, {"stored": len(ask["steps"])})


ROUTES = [
    ("POST", r"/projects/([^/]+)/runs", Handler.open_run),
    ("POST", r"/runs/(\d+)/dumps", Handler.announce),
    ("POST", r"/runs/(\d+)/steps", Handler.add_steps),
    ("POST", r"/runs/(\d+)/reference", Handler.name_reference),
    ("POST", r"/dumps/(\d+)/contents", Handler.contents),
    ("POST", r"/dumps/(\d+)/complete", Handler.complete),
    ("POST", r"/projects/([^/]+)/agents", Handler.heartbeat),
    ("POST", r"/capture-requests/(\d+)", Handler.report),
    ("POST", r"/files", Handler.create),
    ("HEAD", r"/files/([^/]+)", Handler.offset),
    ("PATCH", r"/files/([^/]+)", Handler.patch),
    ("GET", r"/captures/(\d+)", Handler.capture),
    ("GET", r"/captures/(\d+)/report", Handler.whole_report),
]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, prefix="", tls=None, host="127.0.0.1"):
        super().__init__((host, 0), Handler)
        self.state = State()
        self.prefix = prefix
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        shown = "[%s]" % host if ":" in host else host
        self.url = "%s://%s:%d%s" % ("https" if tls else "http", shown, self.server_address[1], prefix)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def handle_error(self, request, client_address):
        pass

    def stop(self):
        self.shutdown()
        self.server_close()
        self.thread.join(5)
