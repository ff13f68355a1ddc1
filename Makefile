# Everything runs in the virtual environment of this checkout, made with whichever Python 3.10 or later is first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# maturin installs into the environment that the shell is in, if it is in one.
export VIRTUAL_ENV := $(abspath $(VENV))
unexport CONDA_PREFIX
# Where torch is wanted with its GPU libraries or without is pip's to say; PyPI has one build for Linux.
INSTALLED := $(VENV)/.installed-test
SOURCES := $(shell find src kernels python -type f -not -name '*.so' -not -path '*/__pycache__/*') Cargo.toml Cargo.lock pyproject.toml

.PHONY: help demo test test-rust test-python test-gpu lint format wheel clean
help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.built ## build, then a short tour: find, compile, run, check; on the GPU if there is one
	$(BIN)/python scripts/demo.py

test: lint test-rust test-python ## lints, Rust tests, pytest

test-rust: ## the tests of the Rust core
	cargo test --quiet

test-python: $(INSTALLED) ## pytest; what needs a GPU is skipped with the reason where there is none
	$(BIN)/python -m pytest -q

test-gpu: $(INSTALLED) ## only what needs a GPU
	$(BIN)/python -m pytest -q -m gpu

lint: $(INSTALLED) ## rustfmt, clippy, ruff, mypy
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## rewrite the code as the lints want it
	cargo fmt
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: $(VENV)/bin/maturin ## build the wheel into dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove what was built
	rm -rf $(VENV) target dist python/cutlass_api/_core*.so

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/bin/maturin: | $(VENV)/bin/python
	$(BIN)/pip install --quiet 'maturin>=1.9,<2'

# The package itself, with NVRTC to compile with and NumPy to show something.
$(VENV)/.built: $(SOURCES) | $(VENV)/bin/maturin
	$(BIN)/maturin develop --release --quiet --extras cuda
	$(BIN)/pip install --quiet numpy
	@touch $@

$(INSTALLED): $(VENV)/.built
	$(BIN)/maturin develop --release --quiet --extras cuda,test
	@touch $@
