#!/usr/bin/env bash
# Make a virtual environment: venv.sh FOLDER PYTHON...
# The first PYTHON that exists and is 3.10 or newer is used. Where Python has no ensurepip (Debian splits it off),
# the package that holds it is installed, if we are root and there is apt-get; else one sentence says what to do.
set -euo pipefail

folder=$1
shift

pick() {
    local candidate
    for candidate in "$@"; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    echo "venv.sh: none of these is a Python of 3.10 or newer: $*" >&2
    echo "  remedy: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2
    return 1
}

install_ensurepip() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get -qq update >/dev/null 2>&1 || true
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "python$version-venv" >/dev/null 2>&1 ||
            DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null 2>&1 || true
    fi
    if ! "$1" -c 'import ensurepip' >/dev/null 2>&1; then
        echo "venv.sh: $1 has no ensurepip, so it cannot make a virtual environment" >&2
        echo "  remedy: apt-get install python$version-venv" >&2
        return 1
    fi
}

python=$(pick "$@")
"$python" -c 'import ensurepip' >/dev/null 2>&1 || install_ensurepip "$python"
"$python" -m venv --clear "$folder"
