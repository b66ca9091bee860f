# The commands of this project. Everything they need is installed by them: the agent into .venv, the real vLLM (only for
# `vllm`, `test`, `test-real` and `demo ENGINE=vllm`) into ${XDG_CACHE_HOME:-~/.cache}/vllm-agent, kept between runs.
# The real Prometheus that the rules are checked with is Debian's: by apt for `test`, unpacked into that folder for
# `test-real`. Where there is no apt, `test` skips those checks and says so; with CI set they must run.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3 python3.13 python3.12 python3.11 python3.10
ENGINE ?= sim
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
CODE := agent tests deploy bench
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help setup demo test test-fast test-real vllm prometheus prometheus-3 zipapp lint format bench clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready ## install the agent and its tools into .venv

$(VENV)/.ready: pyproject.toml
	@echo "setup: making $(VENV)"
	@[ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || deploy/venv.sh $(VENV) $(PYTHON)
	@echo "setup: installing the agent and its tools (about a minute)"
	@$(BIN)/python -m pip install -qq -e '.[dev]'
	@touch $@

demo: setup ## show the closed loop; ENGINE=sim (stand-in, default) or vllm (real vLLM on CPU)
	@$(if $(filter vllm,$(ENGINE)),$(MAKE) --no-print-directory vllm)
	@$(BIN)/python deploy/demo.py --engine $(ENGINE)

test: setup vllm prometheus lint ## lint and the whole suite with one real vLLM server in it
	@VLLM_AGENT_REQUIRE_VLLM=1 VLLM_AGENT_REQUIRE_PROMETHEUS=$${CI:+1} $(PYTEST) -m "not vllm_matrix"

test-fast: setup ## the suite without a real vLLM
	@$(PYTEST) -m "not vllm and not vllm_matrix"

test-real: setup vllm prometheus prometheus-3 ## the whole matrix on the real vLLM; figures land in bench/results
	@VLLM_AGENT_REQUIRE_PROMETHEUS=3 $(PYTEST) tests/rules tests/differential
	@VLLM_AGENT_REQUIRE_VLLM=1 VLLM_AGENT_REQUIRE_PROMETHEUS=3 VLLM_AGENT_FIGURES=bench/results $(PYTEST) -m vllm_matrix tests/real

vllm: ## install the real vLLM for CPU (kept between runs)
	@tests/support/install_vllm.sh >/dev/null

prometheus: ## install Debian's Prometheus, promtool and Alertmanager (root, apt)
	@tests/support/install_prometheus.sh 2 >/dev/null || [ -z "$${CI:-}" ]

prometheus-3: ## unpack Prometheus 3, promtool, Alertmanager and vmalert (kept between runs)
	@tests/support/install_prometheus.sh 3 >/dev/null

zipapp: setup ## build dist/agent-launch.pyz, the launcher alone, standard library only
	@$(BIN)/python -m agent.launch.bundle dist/agent-launch.pyz >/dev/null
	@$(BIN)/python -I -S dist/agent-launch.pyz --help >/dev/null
	@echo "zipapp: dist/agent-launch.pyz"

lint: setup ## ruff, mypy --strict, import layers
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --check --quiet $(CODE)
	@$(BIN)/mypy --strict agent
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache

format: setup ## let ruff format the code
	@$(BIN)/ruff format --quiet $(CODE)

bench: setup ## run the benchmarks; results land in bench/results
	@for bench in bench/bench_*.py; do VLLM_AGENT_FIGURES=bench/results $(BIN)/python $$bench; done

clean: ## remove what was built (the real vLLM stays)
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache $(VENV)/.ready
