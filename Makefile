# `make demo` and `make test` do all their own set-up in .venv; PYTHON names the interpreter (3.11 or newer), PIP_ARGS goes to
# every pip call (an index of your own, say).
PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
THREADS ?= $(shell nproc 2>/dev/null || echo 2)

# Compiled modules are kept, whatever the environment says: a check starts hundreds of processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test slow lint bench docs clean

help:
	@echo "make demo   train, evaluate and explain an integral-operator network on handwritten digits"
	@echo "make test   lint, types, rooms, tests"
	@echo "make slow   the tests of more than a few seconds, which make test leaves out"
	@echo "make bench  time the operators beside their peers on this machine (minutes; keep it quiet)"
	@echo "make docs   run the gallery, build the documentation into docs/_build, open it in Chromium"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fredholm needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/fredholm train digits --overwrite
	$(BIN)/fredholm evaluate runs/digits
	$(BIN)/fredholm explain runs/digits

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n $(THREADS) --dist worksteal -m "not slow" tests src
	$(BIN)/python -m pytest docs  # the code blocks of a page share their names: one process

slow: $(READY)
	$(BIN)/python -m pytest -n $(THREADS) --dist worksteal -m slow tests

# The peers stand apart from the environment, without their dependencies: some would bring another torch.
.peers/.ready: evidence/peers.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps --upgrade --target .peers -r evidence/peers.txt
	@touch $@

bench: .peers/.ready
	$(BIN)/python -m evidence time performance
	$(BIN)/python -m evidence page foundation performance

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	$(BIN)/python -m tests.browse docs/_build

clean:
	rm -rf $(VENV) .peers docs/_build docs/gallery .pytest_cache .ruff_cache .hypothesis
