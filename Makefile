# Everything starts from a bare clone: each target does the set-up it needs, once.
# Stamps in .venv remember what was installed; they age with pyproject.toml and constraints.txt.

PYTHON ?= python3
ARGS ?=
# Tests run side by side: most of them wait for sockets, clocks and other processes.
WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
SYSTEM_STAMP := $(VENV)/.installed-system

# Real brokers and clients to test and measure against; the compiler is for the load generator and, with CMake and
# OpenSSL, for the C++ client; tcpdump for captures of real traffic, Java for Spark.
SYSTEM_PACKAGES := mosquitto mosquitto-clients g++ cmake libssl-dev tcpdump java

.DEFAULT_GOAL := help
.PHONY: help setup run demo test check format bench bench-requests bench-clients bench-durable bench-mesh bench-streams conformance fuzz crash cpp clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -nE 's/^([a-z-]+):.*## (.*)/  make \1: \2/p' $(MAKEFILE_LIST)

setup: $(RUN_STAMP) ## create .venv and install what the bus needs

run: setup ## start the bus (flags: make run ARGS="--mqtt-port 1884")
	@exec $(BIN)/polybus serve $(ARGS)

demo: $(TEST_STAMP) $(SYSTEM_STAMP) ## bus, fleet and Spark pipeline for about a minute: tables and pictures in data/demo
	@$(BIN)/python scripts/demo $(ARGS)

test: $(SYSTEM_STAMP) check ## everything that CI runs (one part: make test ARGS="tests/ops -k acl")
	@echo "==> tests"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(TEST_STAMP) ## format, lint, types, import contracts
	@echo "==> format"
	@$(BIN)/ruff format --check --quiet .
	@echo "==> lint"
	@$(BIN)/ruff check --quiet .
	@echo "==> types"
	@$(BIN)/mypy
	@echo "==> import contracts"
	@$(BIN)/lint-imports

format: $(TEST_STAMP) ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(TEST_STAMP) $(SYSTEM_STAMP) ## Polybus beside Mosquitto, as ratios of one run
	@$(BIN)/python -m bench $(ARGS)

bench-requests: $(TEST_STAMP) $(SYSTEM_STAMP) ## requests over TBus beside the figures of its document
	@$(BIN)/python -m bench.requests $(ARGS)

bench-durable: $(TEST_STAMP) $(SYSTEM_STAMP) ## what durable sessions cost, beside Mosquitto without persistence
	@$(BIN)/python -m bench.durable $(ARGS)

bench-mesh: $(TEST_STAMP) $(SYSTEM_STAMP) ## what it costs to cross from one broker to another, beside one broker alone
	@$(BIN)/python -m bench.mesh $(ARGS)

bench-clients: $(TEST_STAMP) $(SYSTEM_STAMP) ## the Python and C++ clients beside paho-mqtt and libmosquitto
	@scripts/system-packages libmosquitto-dev
	@$(BIN)/python -m bench.clients $(ARGS)

bench-streams: $(TEST_STAMP) $(SYSTEM_STAMP) ## the bus with a stream of everything, beside itself without
	@$(BIN)/python -m bench.streams $(ARGS)

conformance: $(TEST_STAMP) ## which statements of the MQTT standards are covered
	@$(BIN)/python -m tests.conformance $(ARGS)

fuzz: $(TEST_STAMP) ## mutated packets against the real session code
	@$(BIN)/python -m tests.fuzz $(ARGS)

crash: $(TEST_STAMP) $(SYSTEM_STAMP) ## kill -9 the bus again and again while clients keep books
	@$(BIN)/python -m tests.e2e.crash $(ARGS)

cpp: $(RUN_STAMP) $(SYSTEM_STAMP) ## build and test the C++ client (one step: make cpp ARGS=build)
	@cpp/check $(ARGS)

clean: ## remove .venv, caches and what the C++ client was built into
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache cpp/build bench/build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Polybus needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing)." \
		"Name another one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || scripts/system-packages python3-venv
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# The build backend is pinned like everything else, hence no isolated build.
$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "==> installing the bus, with streams"
	@$(PIP) install --constraint constraints.txt setuptools
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[streams]'
	@touch $@

$(TEST_STAMP): $(RUN_STAMP)
	@echo "==> installing the test tools"
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[test]'
	@touch $@

# The list of packages is in this file.
$(SYSTEM_STAMP): scripts/system-packages Makefile | $(BIN)/python
	@scripts/system-packages $(SYSTEM_PACKAGES)
	@touch $@
