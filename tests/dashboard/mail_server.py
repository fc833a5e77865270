"""A real SMTP server on loopback that keeps what it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import cast


class MailServer(ThreadingTCPServer):
    """Keeps mails in `got`; while `refuses`, it takes none."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.got: list[EmailMessage] = []
        self.refuses = False
        host, port = "127.0.0.1", self.server_address[1]
        self.url = f"mailto://{host}:{port}?from=stepscope@example.com&to=lead@example.com&mode=insecure"


class _Session(StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.say("220 ready")
        while line := self.rfile.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                self.say("354 go on")
                self.server.got.append(self.mail())
            elif word == b"MAIL" and self.server.refuses:
                self.say("451 not now")
                continue
            self.say("221 bye" if word == b"QUIT" else "250 ok")

    def mail(self) -> EmailMessage:
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            lines.append(line.removeprefix(b"."))
        return cast(EmailMessage, message_from_bytes(b"".join(lines), policy=policy.default))

    def say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


@contextmanager
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
