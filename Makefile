# What one does here. Bare `make` lists the targets that carry a ## line; CONTRIBUTING.md explains the rest.

VENV := .venv
BIN := $(VENV)/bin
SOUND := import sys, sqlite3, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
# The pins are made on the oldest Python we support, so that one comes first.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c '$(SOUND)' 2>/dev/null && echo $$p && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
JOBS ?= 2
CHECKS := typed formatted linted layered fresh timed covered
FULL = $$(grep -rl --include='test_*.py' mark.full tests)
SIDE_BY_SIDE = $(MAKE) --no-print-directory --keep-going --jobs=$(JOBS)
# Tests start hundreds of processes, which read the bytecode that is written once (tests/conftest.py says until when).
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test test-all check fix bench soak release pins
.PHONY: formatted linted typed layered fresh timed covered compiled cover
.PHONY: test-full test-pythons test-lowest test-portable

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/dev.stamp ## make .venv with everhold and all the tools in it

demo: $(VENV)/base.stamp ## a program is killed in the middle and goes on; half a minute the first time
	@$(BIN)/python -m everhold demo

quick: compiled ## unit, scenario and conformance tests that start no process; about 2 min
	$(PYTEST) -q -n $(JOBS) -m "not soak and not full and not process" tests/unit tests/scenario tests/conformance

test: setup ## before a commit: check, and a short form of every promise; at most 10 min
	@$(SIDE_BY_SIDE) cover $(CHECKS)
	$(PYTEST) -n $(JOBS) --dist loadgroup -m "not soak and not full" --ignore=tests/unit/core

test-all: test test-full ## also npm clients, every Python found, lowest versions, less of the system; at most 60 min
	@$(MAKE) --no-print-directory test-pythons
	@$(MAKE) --no-print-directory test-lowest
	@$(MAKE) --no-print-directory test-portable

test-full: setup
	$(PYTEST) -n $(JOBS) --dist loadgroup -m "full and not soak and not alone" $(FULL)
	$(PYTEST) -n 0 -m "full and not soak and alone" $(FULL)

check: setup ## format, lint, types, layers, docs freshness, clocks, coverage table; under 30 s
	@$(SIDE_BY_SIDE) $(CHECKS)

fix: setup ## repair what tools can repair: format, lint, generated docs
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/python tools/freshness.py --write

bench: setup ## measure, beside the peers; writes docs/benchmarks.md
	$(BIN)/python -m bench --write-docs

soak: setup ## the long tests
	$(PYTEST) -m soak --timeout 0

formatted: setup
	$(BIN)/ruff format --check --quiet .

linted: setup
	$(BIN)/ruff check --quiet .

typed: setup
	$(BIN)/mypy --no-error-summary

layered: setup
	$(BIN)/lint-imports --no-logo

fresh: setup
	$(BIN)/python tools/freshness.py

timed: setup
	$(BIN)/python tools/clocks.py

covered: setup
	$(BIN)/python -m tools.coverage

compiled: setup
	@$(BIN)/python -m compileall -q -j $(JOBS) src tests tools

# The core is small and pure enough that every branch of it can be tested, so every branch is: here, and only here.
cover: compiled
	$(PYTEST) -q tests/unit/core --cov=everhold.core --cov=everhold.errors --cov-branch --cov-fail-under=100

test-pythons: setup
	$(BIN)/python tools/pythons.py

# The lower bounds of pyproject.toml are true.
test-lowest: setup
	$(BIN)/python tools/lowest.py -n $(JOBS)

# The tests that need no Lua, with what Windows lacks taken away.
test-portable: setup
	$(BIN)/python tools/portable.py -n $(JOBS)

release: setup ## build the wheel, check it in an empty environment, and say what to push
	$(BIN)/python tools/release.py

pins: $(BIN)/python
	$(PYTHON) tools/pins.py

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "everhold needs Python 3.11 or newer, with sqlite3 and venv: set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing everhold into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing everhold and the tools into $(VENV), a minute the first time"
	@$(PIP) --no-compile --editable '.[dev]'
	@-$(BIN)/python -m compileall -q -q -j $(JOBS) $(VENV)/lib
	@$(BIN)/python tools/schema_suite.py >/dev/null
	@touch $(VENV)/base.stamp $@
