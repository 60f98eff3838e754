# `make` checks everything that is quick to check; `make help` says what else there is.
# PYTHON is only used to make .venv: another one is `make setup PYTHON=python3.12`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := .venv-compiled

MAKEFLAGS += --no-print-directory
.PHONY: check help setup demo run lint test test-all compiled test-compiled bench bench-growth bench-compiled bench-report

check: lint test ## format, lint, types, layers and the quick tests (what plain `make` does)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
	    printf '  make %-14s %s\n' "$$name" "$$what"; done

setup: $(INSTALLED) ## make .venv and install kestreld and its tools into it; nothing to do when that is done
	@:

demo: $(INSTALLED) ## 100,000 real lines through a queue while kestreld is killed with -9
	@$(BIN)/python docs/demo.py

run: $(INSTALLED) ## kestreld in the foreground, on its defaults unless you have a configuration
	@exec $(BIN)/kestreld

lint: $(INSTALLED) ## format, lint, types and layers, without the tests
	@$(BIN)/ruff format --check --quiet || { echo "some files are not formatted: $(BIN)/ruff format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports >$(VENV)/lint-imports.out 2>&1 || { cat $(VENV)/lint-imports.out >&2; exit 1; }
	@echo "lint: format, ruff, mypy and import-linter are content"

test: $(INSTALLED) ## the quick tests
	@$(BIN)/python -m pytest -n auto --dist loadfile -m 'not long'

test-all: $(INSTALLED) ## every test, the long ones too
	@$(BIN)/python -m pytest -n auto --dist loadfile

compiled: ## kestreld with its hot modules compiled by mypyc, in .venv-compiled: needs a C compiler
	@test -x $(COMPILED)/bin/python || $(PYTHON) -m venv $(COMPILED)
	@KESTRELD_COMPILE=1 $(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	@echo "compiled: $(COMPILED)/bin/kestreld"

test-compiled: compiled ## the quick tests on the compiled build, all but those of the source itself
	@rm -rf $(COMPILED)/checkout && mkdir $(COMPILED)/checkout
	@cp -r tests docs packaging completions benchmarks pyproject.toml README.md CHANGELOG.md $(COMPILED)/checkout 2>/dev/null || true
	@cd $(COMPILED)/checkout && ../bin/python -m pytest -n auto --dist loadfile -m 'not long' --ignore tests/test_house.py

# ROUNDS=1 is shorter, PARTS="compare load-tests backlog growth" chooses, QUICK=1 only shows that it works.
MEASURE := $(BIN)/python -m benchmarks $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick)

bench: $(INSTALLED) ## kestreld beside memcached, redis and beanstalkd, and beside itself with more to carry
	@$(MEASURE) $(PARTS)

bench-growth: ## only what an operation costs with more queues, items and connections
	@$(MAKE) bench PARTS=growth

bench-compiled: $(INSTALLED) compiled ## as bench, with the compiled kestreld beside the pure one
	@$(MEASURE) --kestreld kestreld= --kestreld compiled=$(COMPILED)/bin/kestreld $(PARTS)

bench-report: $(INSTALLED) ## docs/benchmarks.md and its plots, from benchmarks/results
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@$(BIN)/python -m benchmarks.report

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing kestreld and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "kestreld needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1 | tail -1)" >&2; \
	    echo "name another one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
