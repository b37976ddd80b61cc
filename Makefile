# The only door: people and CI use these targets and nothing else. `make` alone prints them.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3 || echo python3)
VENV := .venv/bin
TESTS ?= tests
# Spark on a cluster, over Connect and on S3: what takes minutes of these tests is played with the faults
ELSEWHERE := tests/spark/test_standalone.py tests/spark/test_connect.py tests/spark/test_warehouse_on_s3.py tests/spark/test_notebooks.py tests/spark/test_catalog.py
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup lock wheel format lint test run bench faults mutants clean

help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Create .venv with the locked packages and .jars; does nothing when they are there (S3=1: Spark's jars for S3, too)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
		"setup failed: Python 3.11 or newer is needed (apt-get install python3.11 python3.11-venv; brew install" \
		"python@3.11), or name yours: make setup PYTHON=/path/to/python3.11"; exit 1; }
	@PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m jobs.setup $(if $(filter-out 0 no,$(S3)),--s3)

lock: setup ## Write requirements.lock anew from pyproject.toml
	@$(VENV)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --extra dev --extra connect pyproject.toml --output-file requirements.lock

wheel: setup ## Build dist/: the wheel, the same for spark-submit --py-files, and one for Databricks
	@$(VENV)/python -m jobs.setup.wheel

format: setup ## Format the code and sort its imports
	$(VENV)/ruff check --fix-only --quiet .
	$(VENV)/ruff format .

lint: setup ## ruff, mypy --strict, and who may import whom
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports

test: setup ## Run the tests (TESTS=path for some, WORKERS=0 in one process, ARGS=... for pytest)
	$(VENV)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(TESTS) $(ARGS)

run: setup ## A year of real flights through service, groups and Spark, then it serves (ONCE=1 PORT= EVENTS= RATE= WAREHOUSE=)
	@$(VENV)/python -m jobs.flights $(if $(filter-out 0 no,$(ONCE)),--once) $(if $(PORT),--port "$(PORT)") \
		$(if $(EVENTS),--events "$(EVENTS)") $(if $(RATE),--rate "$(RATE)") \
		$(if $(WAREHOUSE),--warehouse "$(WAREHOUSE)")

bench: setup ## Measure; prints a table, writes out/ (ONLY=rest.arrow, QUICK=1, LONG=1, PEERS=DIR compares)
	$(VENV)/python -m tests.bench $(if $(ONLY),--only "$(ONLY)") $(if $(QUICK),--quick) $(if $(LONG),--long) \
		$(if $(PEERS),--peers "$(PEERS)") $(ARGS)

faults: setup ## Crashes, races, damage, histories at full size; prints a table, writes out/faults.md (RUNS=100)
	$(if $(RUNS),HISTORY_RUNS=$(RUNS)) $(VENV)/python -m pytest tests/faults tests/history $(ELSEWHERE) \
		-m "long or not long" --hypothesis-profile=searching -p tests.fault_report $(ARGS)

mutants: setup ## Change `mq` and `tables` in 200 places, one at a time: do the tests notice? (ARGS="--count 50 --against FILE")
	$(VENV)/python -m tests.mutants $(ARGS)

clean: ## Remove what builds, tests and runs left; keeps .venv, .jars and warehouses
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
		spark-warehouse metastore_db derby.log out
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
