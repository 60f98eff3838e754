# `make` runs all quick checks; `make help` lists the targets.
# PYTHON is only used to make .venv: another one is `make setup PYTHON=python3.12`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := .venv-compiled
SPARK := .venv-spark
DELTA := .venv-delta
JAVA := "$${JAVA_HOME:+$$JAVA_HOME/bin/}java"

# With PYTHONDONTWRITEBYTECODE set, keep bytecode in .venv instead: compiling it anew takes longer than the tests.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode
endif

# Three files of four that pip installs are never imported: those that are get compiled then.
export PIP_COMPILE := 0
# With the newest pip: one of 2023 takes nearly twice as long, to choose versions.
MAKE_VENV = PIP_QUIET=1 $(PYTHON) -m venv --upgrade-deps

MAKEFLAGS += --no-print-directory
.PHONY: check help setup demo run lint test test-all test-long test-compiled test-spark test-clients test-delta screens fuzz simulate fresh-seeds prove \
    compiled wheel bench bench-growth bench-compiled bench-spark bench-report completions man pages spark report

check: lint test ## format, lint, types, layers and the quick tests (default)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
	    printf '  make %-14s %s\n' "$$name" "$$what"; done

setup: $(INSTALLED) ## make .venv and install kestreld and its tools into it; does nothing if it is up to date
	@:

demo: $(INSTALLED) ## 100,000 real lines through a queue while kestreld is killed with -9
	@$(BIN)/python docs/demo.py

run: $(INSTALLED) ## run kestreld in the foreground
	@exec $(BIN)/kestreld

lint: $(INSTALLED) ## format, lint, types and layers, without the tests
	@$(BIN)/ruff format --check --quiet || { echo "some files are not formatted: $(BIN)/ruff format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports >$(VENV)/lint-imports.out 2>&1 || { cat $(VENV)/lint-imports.out >&2; exit 1; }
	@$(BIN)/python -m tests.support.wording
	@echo "lint: format, ruff, mypy, import-linter and wording passed"

# Two for each processor of a small machine: a third of the time they wait for servers, shells and disks.
WORKERS = $$(n=$$(nproc); echo $$((n < 4 ? 2 * n : n)))
# ORDER=1234 is a random order, the same one each time; AGAIN=1 runs what failed the last time, one after the other.
RUN_TESTS = -m pytest $(if $(AGAIN),-p no:xdist --last-failed --last-failed-no-failures none,-n $(WORKERS) --dist loadfile) \
    $(if $(ORDER),-p randomly --randomly-seed=$(ORDER))

# test-all leaves properties to test-long.
test: QUICK := not long
test: $(INSTALLED) ## the quick tests
	@exec $(BIN)/python $(RUN_TESTS) -m '$(QUICK)'

test-all: test-quick test-long test-clients fresh-seeds ## every test: quick, long, clients, fresh seeds, compiled, Spark
	@if command -v cc >/dev/null; then $(MAKE) test-compiled; \
	    else echo "test-all: compiled build skipped, no C compiler found: apt install gcc libc6-dev" >&2; fi
	@if command -v $(JAVA) >/dev/null; then $(MAKE) test-spark; \
	    else echo "test-all: Spark tests skipped, no Java found: apt install default-jre-headless" >&2; fi

.PHONY: test-quick
test-quick:
	@$(MAKE) test QUICK='not long and not property'

# Other people's clients, and their own tests where they have some.
CLIENT_TESTS := tests/clients $(addprefix tests/,jobs/test_redis_clients.py cache/test_memccapable.py \
    cache/test_pymemcache_suite.py cache/test_nginx.py functional/test_pymemcache_suite.py)

test-clients: $(INSTALLED) ## the long tests with other people's clients
	@exec $(BIN)/python $(RUN_TESTS) -m long $(CLIENT_TESTS)

test-long: WORKERS := auto
test-long: export CELERY_TASKS := 50000
test-long: $(INSTALLED) ## the long tests, and properties with all their examples
	@exec $(BIN)/python $(RUN_TESTS) -m 'long or property' $(addprefix --ignore ,$(CLIENT_TESTS))

# What they find fails nothing: it is told, and kept in .fresh-seeds. FIRST=1234567 repeats those of a run.
fresh-seeds: $(INSTALLED) ## seeds of the simulations that nobody has run before
	@exec $(BIN)/python -m tests.simulation.fresh $(if $(FIRST),--first $(FIRST))

# What a change is judged by: the same seeds each time. WORLD=jobs and WORLD=clusters are the other two.
WORLD ?= queues
WORLD_OF_queues := tests.simulation
WORLD_OF_jobs := tests.simulation.jobs
WORLD_OF_clusters := tests.simulation.cluster
SIMULATE_SECONDS ?= 120

simulate: $(INSTALLED) ## a simulation for two minutes, on fixed seeds: WORLD=queues, jobs or clusters
	@exec $(BIN)/python -m $(WORLD_OF_$(WORLD)) --first 1000 --seeds 100000 --seconds $(SIMULATE_SECONDS)

screens: $(INSTALLED) ## regenerate the console's screens (tests/tui/screens, docs/screens); review them before a commit
	@REDRAW=1 $(BIN)/python -m pytest -n auto -q tests/tui/test_screens.py

# FUZZ_SECONDS=60 is shorter, FUZZ_TARGETS=config selects targets. FUZZ_SEED=1 tries the same inputs each time, as long as
# nothing is kept in .fuzz/TARGET; 0 tries others. Failing inputs are kept in .fuzz/TARGET-crash-*.
FUZZ_SECONDS ?= 3600
FUZZ_SEED ?= 0
FUZZ_TARGETS ?= memcache_parser cache_commands disque_commands cluster_bus journal_reader kestrel_files disque_aof config

fuzz: $(INSTALLED) ## each fuzz target for FUZZ_SECONDS (an hour), one after the other
	@for target in $(FUZZ_TARGETS); do \
	    echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
	    $(BIN)/python -m tests.fuzz $$target -max_total_time=$(FUZZ_SECONDS) -seed=$(FUZZ_SEED) -print_final_stats=1 -verbosity=0 || exit 1; done

# The first of the fresh seeds of the simulation, random by default: FIRST=1234567 repeats those of a run.
DRAW_FIRST = FIRST=$${FIRST:-$$(shuf -i 1000000-1999999999 -n 1)} && export FIRST && \
    echo "$@: fresh seeds of the simulation from $$FIRST on; FIRST=$$FIRST repeats them"

# SEEDS=100, KILL_CYCLES=20 and POWER_CUTS=30 are shorter, as are those of jobs (JOB_SEEDS, JOB_KILLS, JOB_POWER_CUTS), of
# clusters (CLUSTER_SEEDS, CLUSTER_SECONDS) and of Celery (CELERY_TASKS=50000 CELERY_KILLS=12 CELERY_ETAS=10000).
SEEDS ?= 10000
KILL_CYCLES ?= 1000
POWER_CUTS ?= 200
JOB_SEEDS ?= 1000
JOB_KILLS ?= 200
JOB_POWER_CUTS ?= 50
CLUSTER_SEEDS ?= 10000
CLUSTER_SECONDS ?= 600
CELERY_TASKS ?= 1000000
CELERY_KILLS ?= 200
CELERY_ETAS ?= 100000
FLIPS ?= 100000
SOAK_SECONDS ?= 3600
PROPERTY_TESTS := tests/kestreld/queues/test_model.py tests/kestreld/journal/test_records.py \
    tests/kestreld/journal/test_repair.py tests/kestreld/journal/test_kestrel_format.py \
    tests/kestreld/server/memcache/test_parser.py tests/kestreld/test_config.py

prove: $(INSTALLED) ## test the guarantees of docs/guarantees.md at length: seeds, crashes, failing calls, kills, power cuts
	@echo "prove: simulation, $(SEEDS) fresh seeds after the kept ones"
	@SEARCH=1 $(BIN)/python -m pytest -n auto tests/simulation/test_seeds.py tests/simulation/test_more_seeds.py
	@$(DRAW_FIRST) && $(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $$FIRST
	@echo "prove: planted bugs, crash states, failing calls"
	@SEARCH=1 $(BIN)/python -m pytest -s -p no:xdist tests/simulation/test_planted.py tests/simulation/test_crash_states.py \
	    tests/simulation/test_failing_calls.py
	@echo "prove: journals cut at every byte, every bit flipped"
	@EVERY_CHANGE=1 BITS_OF_EACH_BYTE=8 $(BIN)/python -m pytest -n auto tests/kestreld/journal/test_recovery.py \
	    tests/kestreld/journal/test_repair.py tests/kestreld/queues/test_repairing.py
	@FLIPS=$(FLIPS) $(BIN)/python -m pytest -s -p no:xdist tests/kestreld/journal/test_many_flips.py
	@echo "prove: an exception at every place"
	@EVERY_PLACE=1 $(BIN)/python -m pytest -n auto -m long tests/kestreld/library/test_interruptions.py
	@echo "prove: a wheel for each Python, a compiled Debian package"
	@SEARCH=1 $(BIN)/python -m pytest tests/packaging/test_wheels.py tests/packaging/test_debian.py
	@echo "prove: properties"
	@$(BIN)/python -m pytest -n auto --hypothesis-profile search --timeout 3600 $(PROPERTY_TESTS)
	@echo "prove: $(KILL_CYCLES) times kill -9"
	@KILL_CYCLES=$(KILL_CYCLES) $(BIN)/python -m pytest -s -p no:xdist -m long tests/functional/test_kill.py
	@echo "prove: $(POWER_CUTS) power cuts"
	@POWER_CUTS=$(POWER_CUTS) $(BIN)/python -m pytest -s -p no:xdist -m long tests/faults/test_power_cuts.py
	@echo "prove: jobs: $(JOB_SEEDS) seeds, planted bugs, $(JOB_KILLS) times kill -9, $(JOB_POWER_CUTS) power cuts"
	@$(BIN)/python -m tests.simulation.jobs --seeds $(JOB_SEEDS)
	@SEARCH=1 JOB_KILLS=$(JOB_KILLS) JOB_POWER_CUTS=$(JOB_POWER_CUTS) $(BIN)/python -m pytest -s -p no:xdist \
	    tests/simulation/jobs tests/faults/test_job_crashes.py
	@echo "prove: clusters: $(CLUSTER_SEEDS) seeds, planted bugs, every order of messages, $(CLUSTER_SECONDS) s of seven real nodes"
	@$(DRAW_FIRST) && $(BIN)/python -m tests.simulation.cluster --seeds $(CLUSTER_SEEDS) --first $$FIRST
	@SEARCH=1 CLUSTER_SECONDS=$(CLUSTER_SECONDS) $(BIN)/python -m pytest -s -p no:xdist tests/simulation/cluster \
	    tests/kestreld/cluster/test_every_order.py tests/faults/test_cluster_trouble.py
	@echo "prove: Celery: $(CELERY_TASKS) tasks, $(CELERY_KILLS) times kill -9"
	@CELERY_TASKS=$(CELERY_TASKS) CELERY_KILLS=$(CELERY_KILLS) $(BIN)/python -m pytest -s -p no:xdist \
	    tests/integrations/celery/test_kill_run.py
	@echo "prove: Celery: $(CELERY_ETAS) tasks for later"
	@CELERY_ETAS=$(CELERY_ETAS) CELERY_ETA_SECONDS=300 CELERY_LATE_SECONDS=1 $(BIN)/python -m pytest -s -p no:xdist \
	    tests/integrations/celery/test_later.py
	@echo "prove: $(SOAK_SECONDS) s of work without growth"
	@SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -s -p no:xdist -m long tests/faults/test_soak.py

compiled: $(COMPILED)/.installed ## kestreld with its hot modules compiled by mypyc, in .venv-compiled: needs a C compiler
	@:

# What was compiled of the same sources by the same tools is used again, by other checkouts, too.
KEPT_BUILDS := $${XDG_CACHE_HOME:-$${HOME:-$$PWD/$(COMPILED)}/.cache}/kestreld

$(COMPILED)/.installed: pyproject.toml $(shell find kestreld kestrelctl kestrelspark tui packaging completions -type f -not -name '*.pyc')
	@test -x $(COMPILED)/bin/python || $(MAKE_VENV) $(COMPILED)
	@echo "compiling kestreld into $(COMPILED): minutes, unless it has been compiled before"
	@KESTRELD_COMPILE=1 KESTRELD_COMPILE_CACHE="$(KEPT_BUILDS)" \
	    $(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	@touch $@
	@echo "compiled: $(COMPILED)/bin/kestreld"

# Not what compiles nothing, nor what checks the source.
NOT_COMPILED := $(addprefix --ignore tests/,test_house.py kestrelctl tui kestrelspark benchmarks)

test-compiled: compiled ## the quick tests of kestreld on the compiled build
	@mkdir -p $(COMPILED)/checkout && find $(COMPILED)/checkout -mindepth 1 -maxdepth 1 ! -name .pytest_cache -exec rm -rf {} +
	@cp -r tests docs packaging completions benchmarks pyproject.toml Makefile README.md CHANGELOG.md $(COMPILED)/checkout 2>/dev/null || true
	@cd $(COMPILED)/checkout && export KESTRELD_COMPILE=1 && exec ../bin/python $(RUN_TESTS) -m 'not long' \
	    $(NOT_COMPILED) $(ONLY)

wheel: $(BIN)/python ## compiled wheels in dist/, one for each supported Python on this machine: needs a C compiler
	@$(BIN)/python packaging/wheels.py dist

# EVERY_CHANGE=1 flips a bit of each byte of the closed segments that Spark reads, BITS_OF_EACH_BYTE=8 every bit.
test-spark: WORKERS := 2
test-spark: $(SPARK)/.installed ## the tests that need Spark, in .venv-spark (half a gigabyte); requires Java 17
	@exec $(SPARK)/bin/python $(RUN_TESTS) --durations 10 $(or $(ONLY),tests/kestrelspark)

# Not in test-all: Delta's newest jars are for an older Spark, so this installs another one, of 450 MB, and fetches jars.
DELTA_VERSION := 4.4.0
test-delta: $(DELTA)/.installed ## ingest into Delta tables, in .venv-delta with the Spark that Delta is for; requires Java 17
	@$(DELTA)/bin/python -m pytest -p no:xdist tests/kestrelspark/test_delta.py

# Spark looks into Maven's folder before it asks a registry itself.
$(DELTA)/.installed: pyproject.toml
	@test -x $(DELTA)/bin/python || $(MAKE_VENV) $(DELTA)
	@echo "installing kestreld with Spark and Delta into $(DELTA)"
	@$(DELTA)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,dev]' 'pyspark==4.2.0' \
	    'delta-spark==$(DELTA_VERSION)'
	@if command -v mvn >/dev/null; then mvn -q -B dependency:get -Dartifact=io.delta:delta-spark_4.2_2.13:$(DELTA_VERSION); fi
	@touch $@

spark: $(SPARK)/.installed ## kestreld with Spark, in .venv-spark
	@:

report: $(SPARK)/.installed ## run kestreld under load for a few seconds and analyse it with Spark, as an HTML page
	@$(SPARK)/bin/python docs/load_report.py

$(SPARK)/.installed: pyproject.toml
	@command -v $(JAVA) >/dev/null || { \
	    echo "Java 17 or newer not found: apt install default-jre-headless, or set JAVA_HOME" >&2; exit 1; }
	@test -x $(SPARK)/bin/python || $(MAKE_VENV) $(SPARK)
	@echo "installing kestreld with Spark into $(SPARK)"
	@$(SPARK)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[spark-fast,spark-test,dev]'
	@touch $@

# ROUNDS=1 is shorter, PARTS="compare load-tests backlog growth cache jobs" selects parts, QUICK=1 is a smoke test.
MEASURE := $(BIN)/python -m benchmarks $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick)

bench: $(INSTALLED) ## benchmarks: kestreld, memcached, redis and beanstalkd, and how costs grow
	@$(MEASURE) $(PARTS)

bench-growth: ## only the cost per operation with more queues, items and connections
	@$(MAKE) bench PARTS=growth

bench-compiled: $(INSTALLED) compiled ## as bench, comparing the compiled kestreld with the pure one
	@$(MEASURE) --kestreld kestreld= --kestreld compiled=$(COMPILED)/bin/kestreld $(PARTS)

# MEGABYTES=200 is shorter.
bench-spark: $(SPARK)/.installed ## reading journals with Spark, with and without the compiled scan
	@$(SPARK)/bin/python -m benchmarks.spark_batch $(MEGABYTES)
	@NUMBA_DISABLE_JIT=1 $(SPARK)/bin/python -m benchmarks.spark_batch $(MEGABYTES)

bench-report: $(INSTALLED) ## docs/benchmarks.md and its plots, from benchmarks/results
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@$(BIN)/python -m benchmarks.report

completions: $(INSTALLED) ## completions/ for bash, zsh and fish, from the command tree
	@$(BIN)/python -m kestrelctl.description completions

pages: $(INSTALLED) ## docs/map.md, and the tables of figures in docs/protocol.md and docs/admin.md
	@$(BIN)/python -m tests.support.reference
	@$(BIN)/python -m tests.support.code_map

man: $(INSTALLED) ## the man pages of kestrelctl, from the command tree
	@$(BIN)/python -m kestrelctl.description man

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing kestreld and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "kestreld needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1 | tail -1)" >&2; \
	    echo "name another one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(MAKE_VENV) $(VENV) || { rm -rf $(VENV); exit 1; }
