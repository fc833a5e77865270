#!/usr/bin/env bash
# The agent's tests on the oldest and the newest Python of this machine, 3.8 or later, with nothing installed but pytest.
# Looks for python3.N on PATH and for pyenv's and uv's; PYTHONS="python3.9 python3.14" chooses others.
set -euo pipefail
cd "$(dirname "$0")/.."

works() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < (3, 8))' 2>/dev/null; }

oldest_and_newest() {
    local minor candidate found=()
    for minor in $(seq 8 20); do
        for candidate in "$(command -v "python3.$minor" || true)" ~/.pyenv/versions/3."$minor".*/bin/python \
            ~/.local/share/uv/python/cpython-3."$minor".*/bin/python3; do
            if [ -x "$candidate" ] && works "$candidate"; then
                found+=("$candidate")
                break
            fi
        done
    done
    printf '%s\n' "${found[0]}" "${found[-1]}" | uniq
}

for python in ${PYTHONS:-$(oldest_and_newest)}; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    venv=.venv-agent/$version
    if ! "$venv/bin/python" -m pytest --version >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check pytest
    fi
    echo "Python $version"
    "$venv/bin/python" -m pytest -c deploy/test_agent.ini --rootdir . -p no:cacheprovider tests/agents "$@"
done
