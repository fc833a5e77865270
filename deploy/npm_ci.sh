#!/usr/bin/env bash
# Gets ECharts as package-lock.json pins it, with this machine's npm or, where there is none, the one of a PyPI wheel.
set -euo pipefail
venv=$1
echo "Fetching ECharts"
if ! command -v npm >/dev/null || ! npm --version >/dev/null 2>&1; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-node.lock
    PATH=$PWD/$venv/bin:$PATH
fi
npm ci --silent --ignore-scripts </dev/null
