#!/usr/bin/env bash
# The agent's callback under a real training on CPU, in a virtual environment of its own: MindSpore wants other pins.
set -euo pipefail
venv=.venv-mindspore
lock=agents/requirements-mindspore.lock
python=""
for name in python3.11 python3.10 python3.12 python3; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
        python=$(command -v "$name")
        break
    fi
done
if [ -z "$python" ]; then
    echo "MindSpore needs Python 3.10, 3.11 or 3.12 and this machine has none" >&2
    exit 1
fi
if ! cmp -s "$lock" "$venv/.lock"; then
    "$python" -m venv --clear "$venv"
    echo "Installing MindSpore"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
    cp "$lock" "$venv/.lock"
fi
"$venv/bin/python" -m pytest -p no:cacheprovider tests/mindspore "$@"
