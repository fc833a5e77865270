#!/usr/bin/env bash
# Makes the virtual environment $1 with the first Python from 3.11 on that this machine has.
set -euo pipefail
target=$1

find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'; then
            command -v "$name"
            return
        fi
    done
}

python=${PYTHON:-$(find_python)}
if [ -z "$python" ]; then
    echo "Stepscope needs Python 3.11 to 3.14 and found none. Name one with PYTHON=/path/to/python make ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        package=$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')
        echo "Installing $package"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; } >/dev/null </dev/null
    else
        echo "$python cannot make virtual environments: install its venv package (Debian: apt-get install python3-venv) and try again." >&2
        exit 1
    fi
fi
"$python" -m venv --clear "$target"
