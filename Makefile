# What a user or developer of this clone runs. GNU make, on Linux and macOS; every target sets up what it needs.

PYTHON ?=
CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11 python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.keyed-setup
DEMO_STAMP := $(VENV)/.keyed-demo
# Four workers for two processors, because those that test Kafka and Spark wait for half of their time. Compiled files
# are kept: the tests start Python hundreds of times.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist loadgroup
DEMO := .demo
ARGS ?=
SPARK ?= 4.0.5

.DEFAULT_GOAL := help
.PHONY: help setup demo dist test test-slow archive simulate spark-matrix lowest oldest-spark pythons lakehouse lint format types bench nexmark docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make .venv with the project and everything it needs; nothing to do when that is there

$(STAMP) $(DEMO_STAMP): pyproject.toml constraints.txt .ci/setup.py
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    exec "$$python" .ci/setup.py $(notdir $@); \
	  fi; \
	done; \
	echo "keyed needs Python 3.11 or newer with its module venv (Debian and Ubuntu: the package python3-venv)." >&2; \
	echo "Tried: $(strip $(CANDIDATES)). Install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	exit 1

demo: $(DEMO_STAMP) ## the main job and its page: the ten busiest destinations of each hour, on Spark (ARGS="--n 5" and so on)
	@if [ -e $(DEMO)/top_n/_SUCCESS ]; then rm -rf $(DEMO); fi
	$(BIN)/python -m examples.top_n --output $(DEMO)/top_n $(ARGS)

test: setup ## the tests, without the slow ones (ARGS="-k name" and so on)
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: setup ## the slow tests: jobs on Spark, kills, clusters, matrices
	$(PYTEST) -m slow $(ARGS)

dist: setup ## the wheel and the source distribution, in dist/
	$(BIN)/python -m hatchling build -d dist

archive: setup ## an archive of Spark's classes, with which the JVMs of the tests start in half the time; they do without
	$(BIN)/python -m tests.support.classes

simulate: setup ## 2,000 seeds of the simulator, and bugs that are planted and have to be found (ARGS="--seeds 100000")
	$(BIN)/python -m tests.keyed.testing.simulations --planted $(ARGS)

spark-matrix: setup ## the Spark tests on every Spark that serves, each in an environment of its own; hours
	$(BIN)/python .ci/versions.py 4.0.5 4.1.4 4.2.1 4.3.0 -- -m spark $(ARGS)

lowest: setup ## the tests, without the slow ones, with the lowest declared version of every dependency
	$(BIN)/python .ci/versions.py lowest -- -m "not slow" $(ARGS)

oldest-spark: setup ## a few whole queries with these versions, the oldest Spark among them
	$(BIN)/python .ci/versions.py lowest -- $(addprefix tests/keyed/runtimes/spark/,test_queries.py test_session_check.py) -m smoke $(ARGS)

pythons: setup ## the bytes of what is stored, and a job's two halves, on each other Python of this machine
	$(BIN)/python .ci/versions.py pythons -- tests/upgrade/test_golden.py $(ARGS)

lakehouse: setup ## Delta and Iceberg tables on Spark 4.0.5, in an environment of its own (SPARK=4.1.4 for another version)
	$(BIN)/python .ci/versions.py $(SPARK) -- tests/keyed/runtimes/spark/test_lake_tables.py $(ARGS)

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## let ruff format and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup ## mypy, strict
	$(BIN)/mypy

bench: setup ## the benchmarks; several minutes
	$(BIN)/python -m tests.benchmarks $(ARGS)

nexmark: setup ## the Nexmark queries beside Flink SQL and Spark SQL; 90 minutes at most (ARGS="--only q5,q7 --minutes 600" and so on)
	$(BIN)/python -m tests.benchmarks.nexmark $(ARGS)

docs: setup ## the documentation site in build/site, with warnings as errors and a check of every link
	$(BIN)/python docs/build.py $(ARGS)

clean: ## remove everything that the targets above made
	rm -rf $(VENV) .environments $(DEMO) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist spark-warehouse
	find keyed windows examples tests -name __pycache__ -type d -prune -exec rm -rf {} +
