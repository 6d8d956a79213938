# The verbs of this project. `make` alone lists them. Everything installs into .venv, nothing else.
#
# PIP_FLAGS goes to pip: on a machine without an NVIDIA card, give it your index of CPU builds of
# torch if pip is not set up for one, or pip may take a build of several gigabytes.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help chat test check bench snapshots clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-dev
KERNELS := $(VENV)/.stamp-kernels
PIP_FLAGS ?=
PYTEST_FLAGS ?=
ARGS ?=

# A process of tests for each processor, four at most; PYTEST_FLAGS="-n 0" runs them in one.
TESTS := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

chat: $(KERNELS) ## open the chat (ARGS="--model FILE" and other flags go to flarechat)
	$(BIN)/flarechat $(ARGS)

test: $(KERNELS) ## run the tests
	$(TESTS) $(PYTEST_FLAGS)

check: $(KERNELS) ## format, lint, types, import contracts, tests, sanitizers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(TESTS) $(PYTEST_FLAGS)
	$(BIN)/python -m pytest -m sanitizers

bench: $(KERNELS) ## measure drafting against plain decoding (ARGS="--workload edit")
	$(BIN)/flarechat bench $(ARGS)

snapshots: $(KERNELS) ## draw the stored screens anew; look at the diff before you commit it
	FLARECHAT_UPDATE=1 $(BIN)/python -m pytest tests/ui $(PYTEST_FLAGS)
	$(BIN)/python -m tests.ui.pictures

clean: ## remove the environment and every cache
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f flarechat/engine/kernels/cpu/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The install compiles the CPU kernels; this does where their sources changed since.
$(KERNELS): $(STAMP) $(wildcard flarechat/engine/kernels/cpu/csrc/*.[ch])
	@$(BIN)/python -c 'from flarechat.engine.kernels import cpu; raise SystemExit(not cpu.library())' || \
		$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(STAMP): pyproject.toml setup.py
	@set -e; python=; \
	for name in python3 python3.13 python3.12 python3.11 python; do \
		if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			python=$$name; break; \
		fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "flarechat needs Python 3.11 or newer, and none was found as python3 or python3.11-13." >&2; \
		echo "Install one, or put it first in PATH." >&2; exit 2; \
	fi; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $$python -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --editable '.[dev]'
	@touch $@
