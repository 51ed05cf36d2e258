# Everything that a person or CI runs. `make` alone lists it. Needs Python >= 3.11, nothing else:
# the tools come with the locked dependencies. Package indexes are whatever this machine's pip and uv are set up for.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.evenkeel-setup
UV_LOCKED := .cache/uv/bin/uv
TORCHTITAN := .cache/torchtitan
TORCHTITAN_STAMP := $(TORCHTITAN)/.evenkeel-setup
UV := $(or $(shell command -v uv 2>/dev/null),$(UV_LOCKED))
# A Python that uv would fetch is not the one that the user chose.
export UV_PYTHON_DOWNLOADS := never
# Where Python may not keep what it compiled, each of the tests' processes spends seconds on torch again.
unexport PYTHONDONTWRITEBYTECODE
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

COMPILE = $(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --quiet
PYTEST_FLAGS ?=
BENCHMARKS := engine.kill_to_commit engine.loss_against_reference speed.sdk_cost speed.telemetry_path detection.run detection.aspects.kinds detection.aspects.prediction \
  detection.aspects.communication detection.aspects.hangs detection.aspects.suspicion_cost detection.page detection.recorded.real_series \
  planning faults leadership.takeover leadership.registration replicas

# Machine code is kept beside its source; a service that finds none compiles at its start. So is what Python compiled of
# torch, which the parts of the tests would each do anew at the same time; and what Kafka's JVM made of its jars.
WARM_UPS := evenkeel.planning.warm_up evenkeel.trainer_sdk.elastic.worker evenkeel.stack.kafka.keep_classes

.PHONY: help setup demo test simulate mutants test-unit test-integration test-e2e test-compose lint format lock generate benchmarks clean distclean

help: ## List what can be made
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with the locked dependencies; nothing to do when they have not changed

demo: setup ## Run the main job through its failures on a local stack; the report goes to out/demo
	evenkeel demo

test: setup $(TORCHTITAN_STAMP) ## Lint and every test but test-compose at the same time; the last line is pytest's
	python -m pytest -p tests.beside --beside-command "make --no-print-directory lint" \
	  --beside tests/integration/elastic --beside tests/unit/planning \
	  --beside tests/unit/detector --beside tests/simulation --beside tests/unit/cli --beside tests/unit --along tests/integration/replicas --along tests/integration/hosts --along tests/integration tests/e2e $(PYTEST_FLAGS)

test-unit: setup ## Tests of the pure parts: no servers, some minutes
	pytest tests/unit $(PYTEST_FLAGS)

simulate: setup ## The protocol between scheduler and ranks on virtual time, from SEED= on, RUNS= seeds; one that fails is made small
	PYTHONHASHSEED=0 python -m tests.simulation.search --seed $(or $(SEED),0) --runs $(or $(RUNS),200)

mutants: setup ## Mistakes put into jobs, plans, mailbox, restore and copies, one at a time: which does no unit test find? MODULE= for some
	rm -rf .cache/mutants && mkdir -p .cache/mutants/src
	cp -rL src/evenkeel .cache/mutants/src/ && cp -r tests benchmarks pyproject.toml .cache/mutants/
	cd .cache/mutants && PYTHONPATH=src python -m tests.mutants.run $(MODULE)

test-integration: setup $(TORCHTITAN_STAMP) ## Tests against real Kafka, PostgreSQL, gRPC and process groups
	pytest tests/integration $(PYTEST_FLAGS)

test-e2e: setup ## Tests that run a whole job with the services
	pytest tests/e2e $(PYTEST_FLAGS)

test-compose: setup ## Bring docker-compose.yml up, run a job against it from outside, take it down; needs Docker
	python -m tests.compose.run

lint: setup ## Style, types, import rules, contracts; generated code up to date
	ruff check .
	ruff format --check .
	mypy
	@# import-linter follows no links: it reads the package as a wheel would hold it.
	@# Tests beside it make and fill __pycache__ meanwhile, over which a copy of all there is trips.
	rm -rf .cache/package
	python -c "import shutil; shutil.copytree('src/evenkeel', '.cache/package/evenkeel', ignore=shutil.ignore_patterns('__pycache__'))"
	PYTHONPATH=.cache/package lint-imports --no-logo
	cd protos && buf lint
	python protos/breaking.py
	python protos/generate.py --check
	python -m evenkeel.cli.pages --check

format: setup ## Format the code and sort the imports
	ruff check --fix .
	ruff format .

generate: setup ## Generate protos/gen from protos/evenkeel, docs/settings.md, docs/topics.md and docs/metrics.md
	python protos/generate.py
	python -m evenkeel.cli.pages

lock: $(UV) ## Compile requirements/*.lock from pyproject.toml; pins stay where they still fit
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file requirements/dev.lock
	$(COMPILE) pyproject.toml --extra services --constraint requirements/dev.lock --output-file requirements/services.lock
	$(COMPILE) pyproject.toml --extra engine --constraint requirements/dev.lock --output-file requirements/trainer.lock
	$(COMPILE) requirements/tools.in --output-file requirements/tools.lock
	@# Of torchtitan's only what the lock has not, or has newer than torchtitan takes.
	mkdir -p .cache
	grep -oE '^[a-z0-9.-]+==[^\]*' requirements/dev.lock \
	  | grep -vE "^($$(grep -oE '^[a-z-]+' requirements/torchtitan.in | paste -sd '|'))==" > .cache/locked.txt
	$(COMPILE) requirements/torchtitan.in --constraint .cache/locked.txt --excludes requirements/torchtitan-excludes.in \
	  $$(sed 's/==.*//; s/^/--no-emit-package /' .cache/locked.txt) --output-file requirements/torchtitan.lock
	@! grep -nE 'https?://' requirements/*.lock || { echo "a lock names a download address: see the lines above"; exit 1; }

benchmarks: setup ## Run every benchmark, an hour or more; each prints a table and JSON
	for each in $(BENCHMARKS); do echo "== $$each"; python -m "benchmarks.$$each"; done

clean: ## Stop local stacks and remove what runs leave behind; .venv and fetched jars stay
	if [ -x $(VENV)/bin/evenkeel ]; then \
	  for each in .stack/*/state.json; do \
	    if [ -e "$$each" ]; then evenkeel stack down --name "$$(basename "$$(dirname "$$each")")"; fi; \
	  done; \
	fi
	rm -rf .stack out dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## Like clean, and remove .venv and .cache too
	rm -rf $(VENV) .cache

$(STAMP): requirements/dev.lock requirements/tools.lock pyproject.toml | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Evenkeel needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11"; exit 1; }
	[ -x $(VENV)/bin/python ] || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	@echo "installing the locked packages: some 5 GB, most of it torch"
	$(UV) pip sync --require-hashes requirements/dev.lock
	$(UV) pip install --quiet --no-deps --build-constraints requirements/tools.lock --editable .
	@echo "compiling the services' inner loops, once: a minute or so"
	@printf '%s\n' $(WARM_UPS) | xargs -P 4 -I {} $(VENV)/bin/python -m {} > /dev/null
	touch $@

# Older versions of some packages of .venv are among it: only the processes of its test have the folder on their path.
$(TORCHTITAN_STAMP): requirements/torchtitan.lock $(STAMP) | $(UV)
	rm -rf $(TORCHTITAN)
	$(UV) pip install --quiet --no-deps --require-hashes --target $(TORCHTITAN) --requirement requirements/torchtitan.lock
	touch $@

$(UV_LOCKED): requirements/tools.lock
	@$(PYTHON) -m venv .cache/uv || { echo "this Python has no venv; Debian, Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	.cache/uv/bin/pip install --quiet --require-hashes --requirement requirements/tools.lock
	touch $@
