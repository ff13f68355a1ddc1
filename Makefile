# Every target runs in a virtual environment in this checkout. PYTHON must be 3.10 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# maturin installs into the active environment: make this one active, whatever the shell uses.
export VIRTUAL_ENV := $(abspath $(VENV))
unexport CONDA_PREFIX
INSTALLED := $(VENV)/.installed-test
SOURCES := $(shell find src kernels python -type f -not -name '*.so' -not -path '*/__pycache__/*') Cargo.toml Cargo.lock pyproject.toml
CPP_SOURCES := $(shell find kernels tests -name '*.cuh' -o -name '*.cu' -o -name '*.cpp' -o -name '*.c')

.PHONY: help demo test test-rust test-python test-gpu lint format wheel clean
help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.built ## build and tour: find, compile, run, check (on the CPU without a GPU)
	$(BIN)/python scripts/demo.py

test: lint test-rust test-python ## lints, Rust tests, pytest

test-rust: ## the tests of the Rust core
	cargo test --quiet

test-python: $(INSTALLED) ## pytest; without a GPU, tests that need one are skipped
	$(BIN)/python -m pytest -q

test-gpu: $(INSTALLED) ## the tests that need a GPU
	$(BIN)/python -m pytest -q -m gpu

lint: $(INSTALLED) ## rustfmt, clippy, clang-format, ruff, mypy, comments and Markdown
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python scripts/lint_text.py

format: $(INSTALLED) ## apply the formatters
	cargo fmt
	$(BIN)/clang-format -i $(CPP_SOURCES)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: $(VENV)/bin/maturin ## build the wheel into dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove build outputs
	rm -rf $(VENV) target dist python/cutlass_api/_core*.so

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/bin/maturin: | $(VENV)/bin/python
	$(BIN)/pip install --quiet 'maturin>=1.9,<2'

# The package with NVRTC, and NumPy for the demo.
$(VENV)/.built: $(SOURCES) | $(VENV)/bin/maturin
	$(BIN)/maturin develop --release --quiet --extras cuda
	$(BIN)/pip install --quiet numpy
	@touch $@

$(INSTALLED): $(VENV)/.built
	$(BIN)/maturin develop --release --quiet --extras cuda,test
	@touch $@
