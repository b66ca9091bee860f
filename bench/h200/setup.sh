#!/usr/bin/env bash
# Prepare a CUDA machine that has Python, torch and Triton but neither vLLM nor a network:
#   setup.sh PARTS WHEELS VENV [SITE]
# PARTS: folder with the pieces of an xz-packed tar of vLLM's site folder, in the order of their names.
# WHEELS: the agent's dependencies as wheels. VENV: the agent's own virtual environment, made here, so that the agent
# and vLLM do not share a library. SITE: where vLLM is unpacked (default /tmp/site).
set -euo pipefail
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
parts=$1 wheels=$2 venv=$3 site=${4:-/tmp/site}

if [ ! -d "$site/vllm" ]; then
    mkdir -p "$site"
    cat "$parts"/* | xz -d -T0 | tar x -C "$site"
fi
python3 -m venv --without-pip --clear "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m pip install -qq --no-index --no-deps --no-compile --no-cache-dir --target "$packages" "$wheels"/*.whl
echo "$here" >"$packages/agent.pth"
"$venv/bin/python" -c 'import agent, aiohttp, click, msgspec, prometheus_client, promql_parser, psutil, pynvml, re2, slack_sdk, yaml'
echo "setup: $(du -sh "$site" | cut -f1) vLLM in $site, the agent in $venv"
