# Needs Python with pip and nothing else; everything is installed into .venv.
# Another interpreter: make PYTHON=python3.12 test. Options for pip: make PIP_FLAGS="--index-url ..." test.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_FLAGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

PART ?=
MINUTES ?= 30
JOBS ?= 1

.PHONY: demo test slow soak lint types unit install format dist clean

demo: $(STAMP) ## trains on this machine with real processes, healthy and faulty, and shows the difference
	$(BIN)/unisono demo

test: lint types unit ## everything that is quick

unit: $(STAMP)
	@echo "== tests"
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow and not soak and not serial"
	$(BIN)/python -m pytest -m "serial and not slow and not soak"

slow: $(STAMP) ## the tests that start many processes
	@echo "== slow tests"
	$(BIN)/python -m pytest -m "slow and not soak" -n 2 --dist loadfile

soak: $(STAMP) ## the same at full size, for MINUTES, going on where it was stopped: make soak PART=deaths MINUTES=30 JOBS=2
	@echo "== soak"
	$(BIN)/python tests/soak.py --minutes $(MINUTES) --jobs $(JOBS) $(if $(PART),--part $(PART))

lint: $(STAMP)
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	@echo "== types"
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

dist: $(STAMP) ## source archive and wheel; the wheel is built from the archive, so nothing can be missing there
	@echo "== distribution in dist/"
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# Some systems ship Python without ensurepip; there the system's pip fills the environment.
$(BIN)/python:
	@echo "== virtual environment in .venv ($(PYTHON))"
	$(PYTHON) -m venv .venv 2>/dev/null || { $(PYTHON) -m venv --clear --without-pip .venv && $(PYTHON) -m pip --python .venv install pip; }

$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard src/unisono/sketch/*.[ch]) | $(BIN)/python
	@echo "== installing (torch is large: this takes minutes, and only the first time)"
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/unisono/sketch/_fold.so
