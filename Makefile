# People and CI use only these targets. `make` alone prints them.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3 || echo python3)
VENV := .venv/bin
# Its libraries are compiled while the project is installed
SOURCES := $(wildcard tables/*/*.[ch] api/kafka/records/*.c)
TESTS ?= tests
# Their long tests take an hour or a night; they are run by name: make test TESTS=... ARGS="-m long --timeout 36000"
HOURS := tests/api/openapi/test_fuzz.py tests/api/routes/test_bad_input.py \
	tests/unit/mq/order/test_memory_cluster.py tests/unit/mq/testing/test_queue_machine.py
# Many tests wait for a service, a lease or a process, so four processes keep two cores busy
WORKERS ?= 4
# Some tests of `make faults` use all cores, most of them one: one process, unless it is asked for more
FAULT_WORKERS = $(if $(filter file,$(origin WORKERS)),,-n $(WORKERS) --dist loadscope --no-loadscope-reorder)
# Files of tests lie in memory if there are 2 GiB: their fsyncs are counted there, not waited for (FAST_TMP= for the disk)
FAST_TMP = $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2097152 { print "TMPDIR=/dev/shm" }')
# Services and Spark's workers are started by the hundred: they compile the modules once
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lock wheel sbom format lint classes compiled test unit run bench faults suites clients fuzz mutants clean

help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: .venv/.project ## Create .venv with the locked packages, and .jars, if they are missing (S3=1: Spark's jars for S3, too)
	@$(VENV)/deltamq setup --quiet $(if $(filter-out 0 no,$(S3)),--s3)

# What builds packages that come as source is locked, too. uv has settings of its own; the index is pip's if it has one
.venv/.packages: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
		"setup failed: Python 3.11 or newer is needed. Install it (apt-get install python3.11 python3.11-venv; brew" \
		"install python@3.11), or give the path of yours: make setup PYTHON=/path/to/python3.11"; exit 1; }
	@mkdir -p .path/deltamq && ln -sfn ../../mq/client/deltamq.py .path/deltamq/__init__.py
	@ln -sfn ../../mq/client/py.typed .path/deltamq/py.typed
	@cd .path/deltamq && for folder in api jobs mq tables; do ln -sfn ../../$$folder $$folder; done
	@PYTHONPATH=.path PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m deltamq.jobs.setup.java
	@test -x $(VENV)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; echo \
		"setup failed: see the message above (Debian, Ubuntu: apt-get install python3.11-venv)"; exit 1; }
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.lock
	@$(VENV)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .venv/uv.lock
	@echo "setup: installing the packages of requirements.lock into .venv (takes a minute or two)"
	@index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(VENV)/python -m pip config get global.index-url 2>/dev/null)}}"; \
		$${index:+env "UV_DEFAULT_INDEX=$$index"} $(VENV)/uv pip sync --quiet --system-certs \
		--python $(VENV)/python --require-hashes --build-constraints requirements.lock requirements.lock
	@touch $@

.venv/.project: .venv/.packages pyproject.toml jobs/setup/build_hook.py tables/compiled.py $(SOURCES)
	@$(VENV)/uv pip install --quiet --offline --python $(VENV)/python --no-deps --no-build-isolation --editable .
	@touch $@

lock: setup ## Update requirements.lock from pyproject.toml
	@$(VENV)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --extra all --extra dev pyproject.toml --output-file requirements.lock

wheel: setup ## Build the wheel and the source in dist/, and a copy of the wheel for spark-submit --py-files
	@$(VENV)/python -m deltamq.jobs.setup.wheel

sbom: setup ## Write dist/deltamq-VERSION.cdx.json: every locked package and jar with its hashes (CycloneDX)
	@$(VENV)/python -m deltamq.jobs.setup.sbom

format: setup ## Format the code and sort its imports
	$(VENV)/ruff check --fix-only --quiet .
	$(VENV)/ruff format .

lint: setup ## Check with ruff and mypy --strict, and check which packages import which
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports

classes: setup ## Make an archive of Spark's classes: Spark starts in seven seconds instead of eleven (tests make it)
	-@$(VENV)/python -m deltamq.jobs.spark.make_classes

compiled: setup ## Compile the tests once: each process of `make test` would do it for itself
	-@test -d tests/__pycache__ || $(VENV)/python -m pytest --collect-only --quiet -n 0 > /dev/null

test: setup classes compiled ## Run the tests (TESTS=path for some, WORKERS=0 in one process, ARGS=... for pytest)
	$(FAST_TMP) $(VENV)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(TESTS) $(ARGS)

unit: setup compiled ## Run the tests that need no Spark and no service process
	$(FAST_TMP) $(VENV)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder tests/unit tests/contract $(ARGS)

run: setup ## Send a year of real flights through DeltaMQ and Spark, then serve (ONCE=1 PORT= EVENTS= RATE= WAIT= WAREHOUSE=)
	@$(VENV)/python -m deltamq.jobs.flights $(if $(filter-out 0 no,$(ONCE)),--once) $(if $(PORT),--port "$(PORT)") \
		$(if $(EVENTS),--events "$(EVENTS)") $(if $(RATE),--rate "$(RATE)") \
		$(if $(WAIT),--wait "$(WAIT)") \
		$(if $(WAREHOUSE),--warehouse "$(WAREHOUSE)")

bench: setup classes ## Run the benchmarks; print a table, write out/ (ONLY=rest.arrow, QUICK=1, LONG=1; PEERS=DIR, AGAINST=COMMIT compare)
	$(VENV)/python -m tests.bench $(if $(ONLY),--only "$(ONLY)") $(if $(QUICK),--quick) $(if $(LONG),--long) \
		$(if $(PEERS),--peers "$(PEERS)") $(if $(AGAINST),--against "$(AGAINST)") $(ARGS)

faults: setup classes ## Test crashes, races, damage, histories at full size; write out/faults.md (RUNS=100 WORKERS=2 CONTINUE=1)
	$(FAST_TMP) $(if $(RUNS),HISTORY_RUNS=$(RUNS)) SPARK_SUBMIT_OPTS=-XX:+UseSerialGC $(VENV)/python -m pytest $(TESTS) \
		$(HOURS:%=--ignore=%) $(FAULT_WORKERS) -m "fault or long" --hypothesis-profile=searching -p tests.fault_report \
		$(if $(filter-out 0 no,$(CONTINUE)),--continue) \
		-o tmp_path_retention_policy=failed $(ARGS)

suites: setup ## Play the test suites of Kafka's clients against the service; fetched into .suites (ONLY=kafka-python,kgo TESTS=PATTERN)
	@$(VENV)/python -m tests.suites $(if $(ONLY),--only "$(ONLY)") $(if $(filter file,$(origin TESTS)),,--tests "$(TESTS)") $(ARGS)

clients: setup ## Make clients in TypeScript, Go and Java of the OpenAPI document, in .clients (api/openapi/README.md)
	@$(VENV)/python -m tests.clients.made

fuzz: setup ## Search every decoder for inputs that break it, SECONDS=60 for each (ARGS="--seed 7 arrow")
	$(VENV)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

mutants: setup ## Change `mq` and `tables` in 200 places, one at a time: do the tests notice? (ARGS="--count 50 --against FILE")
	$(VENV)/python -m tests.mutants $(ARGS)

clean: ## Remove what builds, tests and runs left; keep .venv, .jars and warehouses
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
		spark-warehouse metastore_db derby.log out
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
