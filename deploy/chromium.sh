#!/usr/bin/env bash
# Chromium and a Chinese font for the browser tests: by apt where we are root. Elsewhere those tests say why they are skipped.
set -euo pipefail
found=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$found" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    exit 0
fi
echo "Installing Chromium"
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-wqy-microhei; } >/dev/null </dev/null ||
    echo "Chromium could not be installed" >&2
