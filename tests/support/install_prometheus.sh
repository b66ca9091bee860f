#!/usr/bin/env bash
# Install the real Prometheus, promtool and Alertmanager that the rules are checked with.
#   install_prometheus.sh 2   Debian 12's own (Prometheus 2.42, Alertmanager 0.25) by apt; prints /usr/bin
#   install_prometheus.sh 3   Prometheus 3, Alertmanager and vmalert of Debian's newest suite, unpacked, not installed,
#                             into ${XDG_CACHE_HOME:-~/.cache}/vllm-agent/prometheus-3; prints its usr/bin
# The folder is printed on stdout, progress and remedies on stderr. Nothing is started: a service that the package would
# start is held back. The second form leaves the system's apt alone: lists, cache and sources are folders of its own,
# made in a draft that is renamed at the end under a lock. Which versions came is written to its file `versions`.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/vllm-agent
target=$cache/prometheus-3
suite=sid

say() { echo "prometheus: $*" >&2; }
fail() { say "$1; remedy: $2"; exit 1; }
has_apt() { command -v apt-get >/dev/null 2>&1; }

# ---- Debian 12's own
whole_2() { [ -x /usr/bin/prometheus ] && [ -x /usr/bin/promtool ] && [ -x /usr/bin/prometheus-alertmanager ]; }

# A package's script asks policy-rc.d before it starts a service; 101 = forbidden. One that is there already is kept.
hold_services() {
    [ -e /usr/sbin/policy-rc.d ] && return 0
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

install_2() {
    whole_2 && return 0
    local remedy="apt-get install prometheus prometheus-alertmanager"
    has_apt || fail "there is no apt-get here" "install Prometheus 2.42 and Alertmanager 0.25 to /usr/bin"
    [ "$(id -u)" = 0 ] || fail "only root may install packages" "$remedy"
    say "installing Debian's prometheus and prometheus-alertmanager"
    hold_services
    apt-get -qq update >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        prometheus prometheus-alertmanager >/dev/null 2>&1 || true
    whole_2 || fail "apt could not install them" "$remedy"
}

# ---- Debian's newest, beside the system
whole_3() { [ -s "$target/versions" ] && [ -x "$target/usr/bin/prometheus" ] && [ -x "$target/usr/bin/promtool" ]; }

mirror() {
    local uri
    uri=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
    [ -n "$uri" ] || uri=$(awk '$1 == "deb"{for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) {print $i; exit}}' /etc/apt/sources.list 2>/dev/null || true)
    [ -n "$uri" ] || fail "no Debian mirror is set in /etc/apt" "set one in /etc/apt/sources.list.d/debian.sources"
    echo "$uri"
}

unpack_3() {
    local draft=$1 apt package deb
    mkdir -p "$draft/apt/lists/partial" "$draft/apt/cache/archives/partial" "$draft/debs"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $suite main" >"$draft/apt/sources.list"
    apt=(apt-get -qq -o "Dir::Etc::sourcelist=$draft/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$draft/apt/lists" -o "Dir::Cache=$draft/apt/cache" -o APT::Sandbox::User=root)
    say "reading the package list of $suite"
    "${apt[@]}" update
    for package in prometheus promtool prometheus-alertmanager victoria-metrics vmalert; do
        # promtool and vmalert are packages of their own in some versions, part of the other ones in others.
        (cd "$draft/debs" && "${apt[@]}" download "$package") 2>/dev/null || true
    done
    for deb in "$draft"/debs/*.deb; do
        [ -e "$deb" ] || fail "$suite gave no package" "look at the mirror in /etc/apt"
        dpkg -x "$deb" "$draft/root"
        dpkg-deb -f "$deb" Package Version | awk '{print $2}' | paste -sd' ' >>"$draft/found"
    done
    mv "$draft/found" "$draft/root/versions"
}

install_3() {
    whole_3 && return 0
    has_apt && command -v dpkg >/dev/null 2>&1 || fail "there is no apt here" "unpack Prometheus 3, promtool, Alertmanager and vmalert to $target/usr/bin, their versions to $target/versions"
    mkdir -p "$cache"
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$cache/.prometheus.lock"
        flock 9
    fi
    whole_3 && return 0
    rm -rf "$cache"/.draft-prometheus-*
    local draft=$cache/.draft-prometheus-$$
    # shellcheck disable=SC2064  # the name is wanted as it is now
    trap "rm -rf '$draft'" EXIT
    unpack_3 "$draft"
    rm -rf "$target"
    mv -T "$draft/root" "$target"
    whole_3 || fail "the packages of $suite lack prometheus or promtool" "see $target/versions"
    say "done: $(paste -sd, "$target/versions")"
}

case ${1:-2} in
    2) install_2; echo /usr/bin ;;
    3) install_3; echo "$target/usr/bin" ;;
    *) fail "unknown version '$1'" "say 2 or 3" ;;
esac
