# Holdfast. `make help` lists the targets.
# Everything runs from .venv, which make creates, and updates when pyproject.toml changes.

PYTHON ?= python3
# Arguments for the program that a target runs: make test ARGS='-k lease', make bench-store ARGS=--help
ARGS ?=
# The duration of `make chaos`, on both stores together; its seed, random by default.
SECONDS ?= 120
SEED ?=
# Shorten `make bench` to a few minutes, once the other systems are installed.
QUICK ?=
# The duration of `make soak`.
MINUTES ?= 30
# The number of ended jobs that `make purge-load` purges, and the store: postgres or sqlite.
JOBS ?= 1000000
STORE ?= postgres
# Install exactly what requirements/ pins, with its hashes, as CI does.
LOCKED ?=
# The number of kills of `make step-kills`.
KILLS ?= 200

# The tests start many processes; without bytecode files, each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Separate runs, because live workers with short leases lose them beside many other processes.
# Exit code 5 means that no test was selected, which ARGS may cause.
pytest = { $(BIN)/python -m pytest $(1) $(ARGS) || [ $$? -eq 5 ]; }

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-store chaos step-kills soak purge-load requirements docs lock fmt clean system-packages

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

demo: $(STAMP) ## under a minute of jobs and commands that crash, wait, fail, are cancelled and explained
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(STAMP) system-packages ## all tests, on SQLite and on a private PostgreSQL
	@failed=0; \
	$(call pytest,-n 3 --dist loadgroup -m "not live and not crowd") || failed=1; \
	$(call pytest,-n 3 --dist loadgroup -m live) || failed=1; \
	$(call pytest,-m crowd) || failed=1; \
	exit $$failed

check: $(STAMP) ## format, lint, types, layers, tree, generated files, dead code, requirement ids
	@$(BIN)/python -m tools.check

bench: $(STAMP) system-packages ## Holdfast and comparable systems on one PostgreSQL, in one run: QUICK=1
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(ARGS)

bench-store: $(STAMP) system-packages ## both stores against hand-written SQL, in one run
	@$(BIN)/python -m bench.store $(ARGS)

chaos: $(STAMP) system-packages ## inject faults, chosen by a seed, into workers and stores: SECONDS=300 SEED=7
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

step-kills: $(STAMP) system-packages ## kill -9 between a step's effect and its record, on each store: KILLS=200
	KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/crashes/test_step_effects.py $(ARGS)

soak: $(STAMP) system-packages ## a steady load; throughput and sizes must stay flat: MINUTES=30
	@$(BIN)/python -m bench.soak --minutes $(MINUTES) $(ARGS)

purge-load: $(STAMP) system-packages ## purge many ended jobs beside a running load: JOBS=1000000 STORE=sqlite
	@$(BIN)/python -m bench.purge_load --jobs $(JOBS) --store $(STORE) $(ARGS)

requirements: $(STAMP) ## list each requirement with its tests, and the open ones
	@$(BIN)/python -m tools.requirements $(ARGS)

docs: $(STAMP) ## write the generated files again
	@$(BIN)/python -m tools.generate $(ARGS)

lock: $(STAMP) ## pin what the image and CI install, with hashes, after a change of pyproject.toml
	@$(BIN)/python -m tools.lock $(ARGS)

fmt: $(STAMP) ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove caches, builds and .venv
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

system-packages:
	@tools/system_packages

$(STAMP): pyproject.toml $(if $(LOCKED),$(wildcard requirements/*.txt))
	@$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/build.txt -r requirements/dev.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		$(if $(LOCKED),--no-deps --no-build-isolation --editable .,--editable '.[dev]')
	@touch $@
