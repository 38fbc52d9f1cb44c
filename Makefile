# Two commands matter: `make demo` and `make test`. `make help` lists the rest.
PY ?= python3
BIN := .venv/bin
PG15 ?= /usr/lib/postgresql/15/bin
OUT ?= verify-full/$(shell date +%Y-%m-%d-%H%M%S)
# Tests start a thousand processes. Where bytecode is turned off, each of them would compile Kept anew: 0.3 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo publisher test check check-rest venv lint types imports test-debian test-slow simulate storm verify verify-full verify-points verify-planted planted-at-random test-15 bench-peers lock clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

demo: .venv/.demo ## a fleet of workers, killed every few seconds, losing nothing (Ctrl-C ends it)
	@$(BIN)/python examples/demo

publisher: .venv/.dev ## domain events to Google Pub/Sub (a stand-in), with publisher and broker failing
	@$(BIN)/python examples/publisher

test: .venv/.dev ## the test suite on the embedded PostgreSQL; needs neither apt nor root
	@$(BIN)/python -m pytest -n 2 -m "not slow and not debian" -q
	@$(BIN)/python tests/left_out.py

check: test check-rest ## everything CI runs

check-rest: .venv/.dev lint types imports test-debian test-slow simulate verify verify-points verify-planted test-15 ## … without what `make test` runs

lint: .venv/.dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev ## mypy --strict
	$(BIN)/mypy

imports: .venv/.dev ## import-linter
	$(BIN)/lint-imports

test-debian: .venv/.dev ## tests that need Debian packages (pgbouncer, libfaketime, rabbitmq-server, systemd)
	$(BIN)/python -m pytest -q -m "debian and not slow"

storm: .venv/.dev ## 50,000 events while worker, broker and database are killed at random (EVENTS= SEED=)
	@$(BIN)/python tests/storm.py $(if $(EVENTS),--events $(EVENTS)) $(if $(SEED),--seed $(SEED))

SEEDS ?= 200
simulate: .venv/.dev ## worlds of jobs and of schedules, drawn from seeds, and the state machine (SEEDS= how many, SEED= one of them)
	@KEPT_SIMULATE_SEEDS=$(SEEDS) $(if $(SEED),KEPT_SIMULATE_SEED=$(SEED)) \
	  $(BIN)/python -m pytest -q -n 2 -p no:cacheprovider -m "not slow" tests/simulation $(if $(SEED),,tests/jobs/test_state_machine.py)

verify: .venv/.dev ## the promises under faults, small: about two minutes (SEED=)
	$(BIN)/kept verify --seconds 75 --seed $(or $(SEED),1)

verify-full: .venv/.dev ## the promises under every fault, 1,000,000 jobs: the logs are kept in OUT (SEED= JOBS= SECONDS= OUT=)
	@out=$(OUT); mkdir -p $$out; \
	$(BIN)/kept verify --jobs $(or $(JOBS),1000000) --seconds $(or $(SECONDS),1200) --seed $(or $(SEED),1) --keep $$out/all || exit $$?; \
	for fault in promote promote-sync pgbouncer; do \
	  $(BIN)/kept verify --faults $$fault,kill,host --seed $(or $(SEED),1) --keep $$out/$$fault || exit $$?; \
	done

test-slow: .venv/.dev ## tests that take minutes
	$(BIN)/python -m pytest -q -m slow

verify-points: .venv/.dev ## every crash point in every way: killed, an error before, done and an error seen (SEED= POINTS=)
	@$(BIN)/python tests/crash_points.py --seed $(or $(SEED),1) $(POINTS)

verify-planted: .venv/.dev ## known bugs, planted one by one: the judge of `kept verify` has to raise the alarm at each (PLANTS=)
	@$(BIN)/python tests/planted_bugs.py $(PLANTS)

planted-at-random: .venv/.dev ## the same bugs in runs with faults at random: which of them such runs find (SEED= PLANTS=)
	@$(BIN)/python tests/planted_at_random.py --seed $(or $(SEED),1) $(PLANTS)

test-15: .venv/.dev ## the suite on PostgreSQL 15
	KEPT_PG_BIN=$(PG15) $(BIN)/python -m pytest -n 2 -q -m "not slow and not debian"

bench-peers: .venv/.dev ## the same work through Kept and its peers (PEERS= WHAT= ROUNDS= SCALE= BENCH_OPTIONS=)
	@$(BIN)/python bench-peers $(if $(PEERS),--peers $(PEERS)) $(if $(WHAT),--what $(WHAT)) \
	  $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SCALE),--scale $(SCALE)) $(BENCH_OPTIONS)

venv: .venv/.dev ## prepare .venv and do nothing else

lock: .venv/.dev ## write the lock files anew
	$(BIN)/uv pip compile -q --universal --generate-hashes --extra embedded --no-header --no-annotate pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes --all-extras --no-header --no-annotate pyproject.toml -o requirements-dev.lock

.venv/.python:
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Kept needs Python 3.11 or newer as $(PY); name another one with: make PY=python3.12 …"; exit 1; }
	@$(PY) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv is missing; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(PY) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	@touch $@

.venv/.demo: .venv/.python requirements.lock pyproject.toml
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

.venv/.dev: .venv/.demo requirements-dev.lock
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements-dev.lock
	@touch $@

clean: ## remove .venv, caches and what benchmarks installed
	rm -rf .venv .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
