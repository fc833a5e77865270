"""Where notices may go: not to this machine itself, nor to the addresses a cloud keeps its secrets at.

An owner types the address, and a name may resolve to anything at the moment of sending. So the check that counts is on
the address a socket connects to.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

METADATA = tuple(map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Beside 169.254.169.254, which is link-local."""
_guarded = threading.local()


class Refused(OSError):
    """A connection to an address inside."""


def is_inside(address: str) -> bool:
    """Whether that IP address is this machine, its link, or a cloud's metadata service."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return any(
        one in METADATA or one.is_loopback or one.is_link_local or one.is_unspecified or one.is_multicast
        for one in (found, mapped)
        if one is not None
    )


def leads_inside(url: str) -> bool:
    """Whether the host in `url` is, or resolves to, such an address. A name that resolves to nothing is left alone."""
    host = urlsplit(url).hostname
    if settings.NOTICE_LOOPBACK_ALLOWED or not host:
        return False
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return any(map(is_inside, found))


@contextmanager
def only_outside() -> Iterator[None]:
    """Within it, this thread's sockets connect to no address inside, whatever names resolve to and redirects say."""
    _guarded.on = not settings.NOTICE_LOOPBACK_ALLOWED
    try:
        yield
    finally:
        _guarded.on = False


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not getattr(_guarded, "on", False):
        return
    address = arguments[1]
    if isinstance(address, tuple) and is_inside(str(address[0])):
        raise Refused(f"{address[0]} is an address inside")


sys.addaudithook(_refuse)
