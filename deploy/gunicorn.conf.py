"""Gunicorn's settings. Never preload: a process forked after Polars has worked hangs."""

from __future__ import annotations

import os

bind = f"{os.environ.get('STEPSCOPE_BIND', '127.0.0.1')}:{os.environ.get('PORT', '8000')}"
worker_class = "gthread"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
threads = int(os.environ.get("STEPSCOPE_WEB_THREADS", "8"))
timeout = 120  # a PATCH of an upload may be slow; threads keep the worker's own heartbeat going
graceful_timeout = 15
keepalive = 5
max_requests = 20_000
max_requests_jitter = 2_000
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None
control_socket_disable = True
accesslog = os.environ.get("STEPSCOPE_ACCESS_LOG") or None
preload_app = False
