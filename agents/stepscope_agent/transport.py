"""HTTP to one server: proxies, private certificates, keep-alive, patience."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import select
import socket
import ssl
import time
import urllib.parse
from typing import Any, Callable, Mapping, NamedTuple

from stepscope_agent import PROTOCOL, __version__
from stepscope_agent.errors import AgentError, Refused, TimedOut, Unreachable
from stepscope_agent.link import Link, is_local

PASSING = frozenset((408, 425, 429, 500, 502, 503, 504, 507))
"""Answers after which the same request may well succeed later."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
KEPT_OPEN_S = 2.0
IO_TIMEOUT_S = 60.0
LARGEST_ANSWER = 256 * 1024 * 1024
BLOCK = 64 * 1024


class Fault(Exception):
    """A passing trouble: worth another try."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object; empty when it is something else."""
        try:
            value = json.loads(self.body.decode("utf-8"))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def retry_after(self) -> float | None:
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdigit() else None


class Transport:
    """Talks to `server` only; the token is never sent anywhere else, redirects included.

    `retry_for` seconds without any success make the server unreachable; `deadline` is a `clock` time.
    `sending_s` is how long the last request took to leave.
    """

    def __init__(
        self,
        server: str,
        token: str,
        ca_file: str | None = None,
        retry_for: float = 120.0,
        deadline: float | None = None,
        notify: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server, self.token, self.ca_file = server, token, ca_file
        self.retry_for, self.deadline = retry_for, deadline
        self.notify, self.sleep, self.clock = notify, sleep, clock
        self.bytes_per_s: float | None = None
        self.sending_s = 0.0
        self._connection: http.client.HTTPConnection | None = None
        self._trusted: ssl.SSLContext | None = None
        self._take_address()

    def _take_address(self) -> None:
        parts = urllib.parse.urlsplit(self.server if "://" in self.server else "https://" + self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AgentError("server must look like https://stepscope.example.com, not %r" % self.server)
        try:
            port = parts.port
        except ValueError:
            raise AgentError("server address %r has a port that is not a number" % self.server) from None
        self.scheme, self.host = parts.scheme, parts.hostname
        self.port = port or (443 if self.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/")
        self.proxy = _proxy(self.scheme, self.host, self.port)
        self.link = Link(is_local(self.host) and self.proxy is None, clock=self.clock)
        if any(ord(letter) < 33 or ord(letter) > 126 for letter in self.token):
            raise AgentError("the token holds blanks or letters that no token has")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def remaining(self) -> float | None:
        return None if self.deadline is None else self.deadline - self.clock()

    def once(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """One request, one answer. Raises Fault when network or server stumble, Unreachable when it is hopeless."""
        reused = self._connection is not None
        try:
            return self._exchange(method, path, headers, body)
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            if reused and isinstance(exc, (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)):
                raise Fault("the server closed the connection", retry_after=0.0) from exc
            raise self._trouble(exc) from exc

    def call(self, method: str, path: str, payload: Any = None) -> Answer:
        """A JSON call of the API, tried again through passing troubles. Raises Refused, Unreachable, TimedOut."""
        body = b"" if payload is None else json.dumps(payload, separators=(",", ":"), allow_nan=False).encode("utf-8")
        headers = {"Content-Type": "application/json"} if body else {}

        def attempt() -> Answer:
            return self.once(method, self.prefix + "/api/v1" + path, headers, body)

        return accepted(self.patiently(attempt))

    def ask_once(self, method: str, path: str, payload: Any) -> Answer:
        """A JSON call without a second try, except on a connection that had been idle. Raises Unreachable."""
        body = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode("utf-8")

        def attempt() -> Answer:
            return self.once(method, self.prefix + "/api/v1" + path, {"Content-Type": "application/json"}, body)

        try:
            return attempt()
        except Fault as exc:
            if exc.retry_after != 0.0:
                raise self._unreachable(exc) from exc
        try:
            return attempt()
        except Fault as exc:
            raise self._unreachable(exc) from exc

    def try_once(self, method: str, path: str, payload: Any) -> Answer | None:
        """A JSON call that may fail: no second try, no error."""
        try:
            return self.ask_once(method, path, payload)
        except AgentError:
            return None

    def patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """`attempt` again and again until it answers something that is not a passing trouble."""
        began, tries = self.clock(), 0
        while True:
            try:
                answer = attempt()
                if answer.status not in PASSING:
                    return answer
                fault = Fault("%s (%d)" % (_said(answer), answer.status), answer.retry_after)
            except Fault as exc:
                fault = exc
            self._pause(fault, began, tries)
            tries += 1

    def pace(self, count: int, began: float) -> None:
        """Waits until sending `count` bytes since `began` is within the bandwidth allowed."""
        if self.bytes_per_s:
            ahead = count / self.bytes_per_s - (self.clock() - began)
            if ahead > 0:
                self.sleep(ahead)

    def _pause(self, fault: Fault, began: float, tries: int) -> None:
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries, 10))
        pause = longest * (0.5 + 0.5 * random.random())
        if fault.retry_after is not None:  # zero means at once, but only the first time
            pause = fault.retry_after if tries == 0 else max(fault.retry_after, pause)
        left = self.remaining()
        if left is not None and left < pause:
            raise TimedOut("time is up; last trouble with %s: %s" % (self.server, fault))
        asked = fault.retry_after or 0.0  # a wait that the server asked for is no silence
        if self.clock() + pause - began > self.retry_for + asked:
            raise self._unreachable(fault)
        if pause > 0:
            self.notify("%s; trying again in %.0f s" % (fault, max(pause, 1)))
            if pause > KEPT_OPEN_S:
                self.close()  # the server will have done so by then, and that would look like another trouble
            self.sleep(pause)

    def _unreachable(self, fault: Fault) -> Unreachable:
        way = " through the proxy %s" % self.proxy.hostname if self.proxy else ""
        return Unreachable("cannot reach %s%s: %s" % (self.server, way, fault))

    def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = self._connected()
        target = "http://%s:%d%s" % (_bracketed(self.host), self.port, path) if self._plain_proxy() else path
        connection.putrequest(method, target, skip_accept_encoding=True, skip_host=True)
        connection.putheader("Host", _bracketed(self.host) + ("" if self.port in (80, 443) else ":%d" % self.port))
        for name, value in {**self._common(len(body)), **headers}.items():
            connection.putheader(name, value)
        began = self.clock()
        try:
            connection.endheaders(body or None)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal may have been sent before the whole body was read: it is worth reading
        self.sending_s = self.clock() - began
        reply = connection.getresponse()
        data = _body(reply)
        answer = Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, data)
        if reply.will_close:
            self.close()
        return answer

    def _common(self, length: int) -> dict[str, str]:
        headers = {
            "Authorization": "Bearer " + self.token,
            "Stepscope-Protocol": PROTOCOL,
            "User-Agent": "stepscope-agent/" + __version__,
            "Accept": "application/json",
            "Content-Length": str(length),
        }
        if self._plain_proxy():
            headers.update(_proxy_headers(self.proxy))
        return headers

    def _plain_proxy(self) -> bool:
        return self.proxy is not None and self.scheme == "http"

    def _connected(self) -> http.client.HTTPConnection:
        left = self.remaining()
        if left is not None and left <= 0:
            raise TimedOut("time is up")
        wait = IO_TIMEOUT_S if left is None else max(1.0, min(IO_TIMEOUT_S, left))
        if self._connection is not None and _is_closed_there(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._open(wait)
        if self._connection.sock is not None:
            self._connection.sock.settimeout(wait)
        return self._connection

    def _open(self, wait: float) -> http.client.HTTPConnection:
        if self.proxy is None:
            host, port = self.host, self.port
        else:
            host, port = self.proxy.hostname or "", self.proxy.port or 3128
        if self.scheme == "http":
            connection = http.client.HTTPConnection(host, port, timeout=wait)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=wait, context=self._tls())
            if self.proxy is not None:
                connection.set_tunnel(self.host, self.port, _proxy_headers(self.proxy))
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _tls(self) -> ssl.SSLContext:
        """With all certificates that this host trusts, which takes a while to read: kept until one is not trusted."""
        if self._trusted is None:
            try:
                self._trusted = ssl.create_default_context(cafile=self.ca_file)
            except (OSError, ssl.SSLError) as exc:
                raise Unreachable("cannot read the certificates in %s: %s" % (self.ca_file, exc)) from exc
        return self._trusted

    def _trouble(self, exc: Exception) -> Exception:
        """Fault for what may pass, Unreachable for what will not."""
        if isinstance(exc, ssl.SSLCertVerificationError):
            self._trusted = None
            return Unreachable(
                "the certificate of %s is not trusted (%s); give the CA that signed it with --ca FILE"
                % (self.server, exc.verify_message)
            )
        if isinstance(exc, ssl.SSLError) and "WRONG_VERSION" in str(exc):
            return Unreachable("%s does not speak TLS there; is it http:// ?" % self.server)
        if isinstance(exc, socket.gaierror):
            return Fault("no address for host %s" % (self.proxy.hostname if self.proxy else self.host))
        if isinstance(exc, ConnectionRefusedError):
            return Fault("connection refused")
        if isinstance(exc, socket.timeout):
            return Fault("no answer in time")
        return Fault(str(exc) or type(exc).__name__)


def _is_closed_there(connection: http.client.HTTPConnection) -> bool:
    """Whether a connection that was kept open is over: nothing but its end can be there to read."""
    try:
        return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _body(reply: http.client.HTTPResponse) -> bytes:
    """Block by block: up to Python 3.9 read(n) sets n bytes of memory aside whatever comes."""
    blocks, size = [], 0
    while size < LARGEST_ANSWER:
        block = reply.read(BLOCK)
        if not block:
            break
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def accepted(answer: Answer) -> Answer:
    """The answer when it is a success; raises Refused with the server's own words otherwise."""
    if 200 <= answer.status < 300:
        return answer
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "elsewhere")
        raise Refused(answer.status, "redirect", "the server sends us to %s: give that address with --server" % where)
    error = answer.json().get("error")
    code = str(error.get("code", "")) if isinstance(error, dict) else ""
    raise Refused(answer.status, code, _said(answer), answer.json())


def _said(answer: Answer) -> str:
    error = answer.json().get("error")
    if isinstance(error, dict) and error.get("message"):
        return "the server says: %s" % error["message"]
    return ("the server answered %d %s" % (answer.status, http.client.responses.get(answer.status, ""))).rstrip()


def _proxy(scheme: str, host: str, port: int) -> urllib.parse.SplitResult | None:
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # large, and most hosts have no proxy

    proxies = urllib.request.getproxies_environment()
    address = proxies.get(scheme) or proxies.get("all")
    bypassed = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
    if not address or bypassed("%s:%d" % (host, port), proxies):
        return None
    parts = urllib.parse.urlsplit(address if "://" in address else "http://" + address)
    if parts.scheme != "http" or not parts.hostname:
        raise AgentError("a %s:// proxy is not supported; use an http:// one" % parts.scheme)
    return parts


def _proxy_headers(proxy: urllib.parse.SplitResult | None) -> dict[str, str]:
    if proxy is None or proxy.username is None:
        return {}
    pair = "%s:%s" % (urllib.parse.unquote(proxy.username), urllib.parse.unquote(proxy.password or ""))
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")}


def _bracketed(host: str) -> str:
    return "[%s]" % host if ":" in host else host
