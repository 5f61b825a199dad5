# Targets: demo, test, test-slow, test-long, test-golden, lint, docs, bench, dist-check, compose, flower-compose, study, proto. Each
# makes its own .venv when pyproject.toml has changed since the last time.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 3

.PHONY: help demo test test-slow test-long test-golden lint docs bench dist-check compose flower-compose study proto clean

help:
	@echo "make demo    train a private model over six sites on real data, in under three minutes"
	@echo "make test    run the tests that are not slow, in minutes"
	@echo "make test-slow   run the slow ones: real processes, wheels, audits, figures"
	@echo "make test-long   run those that take minutes each, before a version: checks by hand, one audit"
	@echo "make test-golden   run those that compare bytes, of both kinds; for other processors and libraries"
	@echo "make lint    ruff and mypy --strict"
	@echo "make docs    the documentation site in build/site, every notebook run"
	@echo "make bench   speed against XGBoost"
	@echo "make dist-check  build wheel and sdist, and check them as users get them"
	@echo "make compose run docker-compose.yml, and compare its model with a local run's"
	@echo "make flower-compose   the same for deploy/flower-compose.yml, over Flower"
	@echo "make study   play a study of six sites in containers, from invitations to two models"
	@echo "make proto   write the Python code of protocol/hedgerow.proto again"
	@echo "make clean   remove the virtual environment and all caches"

demo: $(VENV)/.installed
	$(BIN)/hedgerow demo

# The workers have all processors: threads of XGBoost and BLAS beside them would only wait for one another. Each begins
# with its share of the tests, in order, and takes from the others at the end. Hundreds of processes are started, and each
# would compile the package again if nobody might keep its bytecode.
test: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m "not slow"

# Tests of one file share processes, so a file stays with one worker.
test-slow: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m "slow and not long"

test-long: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m long

# What compares bytes passes with every processor and library: .ci/run tries others.
test-golden: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m golden \
		$$(grep -rl "mark.golden" tests --include="*.py")

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

# A warning is an error, and so is a notebook that stops.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 HEDGEROW_RUN_NOTEBOOKS=true $(BIN)/python -m mkdocs build --quiet

bench: $(VENV)/.installed-dev
	$(BIN)/python -m experiments speed

dist-check:
	deploy/dist-check $(PYTHON)

# These three need a container engine, the first two docker compose or podman-compose.
compose: $(VENV)/.installed
	deploy/compose-check $(BIN)/python

flower-compose: $(VENV)/.installed
	deploy/flower-compose-check $(BIN)/python

study: $(VENV)/.installed
	$(BIN)/python deploy/study-check --quick

proto: $(VENV)/.installed-dev
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. hedgerow/protocol/hedgerow.proto

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Hedgerow needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The demo needs no more than a node does; the other targets install everything.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
