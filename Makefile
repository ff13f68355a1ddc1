# Every target runs in a virtual environment in this checkout. PYTHON must be 3.10 or later. `make
# test` installs a PyTorch that needs 3.11; `make test-torch TORCH=2.14.1` does not.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# maturin installs into the active environment: make this one active, whatever the shell uses.
export VIRTUAL_ENV := $(abspath $(VENV))
unexport CONDA_PREFIX
# uv installs no bytecode. If Python may not write any, each process of the tests compiles torch's
# sources once more, which takes 2 s.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := $(VENV)/.installed-test
REQUIRED := $(VENV)/.required-test
# Installs extras of pyproject.toml. uv installs torch in a fraction of pip's time.
REQUIRE := $(BIN)/uv pip install --quiet --requirements pyproject.toml
# Two processes, each with one thread of torch: tests of times run alone, behind the others.
PYTEST := python -m pytest -q --dist worksteal
# Without a GPU (/dev/dxg is that of WSL), tests that need one are left out, not skipped one by one.
WITHOUT_GPU := $(if $(wildcard /dev/nvidia* /dev/dxg),, and not gpu)
# The files with tests of times. To collect all files takes 15 s.
TIMING = $(shell grep -rl mark.timing tests --include='test_*.py')
# The environment of `test-nvidia-operators`, and what it has beside the requirements of the tests.
NVIDIA_VENV := .venv-nvidia-operators
NVIDIA_PACKAGES := nvidia-cutlass-operators==0.3.0 nvidia-cutlass-dsl==4.8.1 \
	apache-tvm-ffi==0.1.15.post2 cuda-bindings==13.5.0
# The environment of `test-torch`.
TORCH_VENV = .venv-torch-$(or $(TORCH),$(error set TORCH: make test-torch TORCH=2.11.0))
SOURCES := .cargo/config.toml $(shell find src kernels python -type f -not -name '*.so' -not -path '*/__pycache__/*') Cargo.toml Cargo.lock pyproject.toml
WHEEL_TARGETS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
CPP_SOURCES := $(shell find kernels tests -name '*.cuh' -o -name '*.cu' -o -name '*.cpp' -o -name '*.[ch]')

.PHONY: help demo test test-rust test-python test-kernels test-gpu test-torch test-operators \
	test-nvidia-operators lint lint-rust lint-others format docs look wheel wheels clean
help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 23

demo: $(VENV)/.built ## build and tour: find, compile, run, check (on the CPU without a GPU)
	$(BIN)/python scripts/demo.py

# The release build ends with minutes of link-time optimization on one core. The debug builds, which
# are nice, and the lints run beside it.
test: ## lints, Rust tests, pytest
	@$(MAKE) --no-print-directory -j 3 $(INSTALLED) lint test-rust
	@$(MAKE) --no-print-directory test-python

# There are unit tests only: without --lib, cargo also builds the library, which they do not use.
test-rust: ## the tests of the Rust core and of the emulator
	nice cargo test --quiet --workspace --lib

test-python: $(INSTALLED) ## pytest; without a GPU, tests that need one are left out
	OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) -n 2 -m "not timing$(WITHOUT_GPU)"
	$(BIN)/$(PYTEST) -m timing $(TIMING)

# A test that takes minutes hangs: its stack is printed.
test-operators: $(INSTALLED) ## all samples of torch's products through all its transforms
	OMP_NUM_THREADS=1 TEST_OPERATORS=all $(BIN)/$(PYTEST) -n 2 -o faulthandler_timeout=180 \
		tests/operators

test-kernels: $(INSTALLED) ## all kernels of the samples, compiled and emulated, and all models
	OMP_NUM_THREADS=1 TEST_KERNELS=all $(BIN)/$(PYTEST) -n 2 tests/compile tests/reference \
		tests/pytorch/test_quantize_kernels.py tests/pytorch/test_compile_models.py \
		tests/tools/test_bench_model.py

test-gpu: $(INSTALLED) ## the tests that need a GPU
	$(BIN)/$(PYTEST) -m gpu

test-torch: ## pytest with another torch: make test-torch TORCH=2.11.0
	@$(MAKE) --no-print-directory $(TORCH_VENV)/.installed
	$(TORCH_VENV)/bin/$(PYTEST) -n 2 -m "not timing"
	$(TORCH_VENV)/bin/$(PYTEST) -m timing $(TIMING)

# The variable names the Python whose NVIDIA package is compared with the stored names.
test-nvidia-operators: $(NVIDIA_VENV)/.installed ## pytest beside NVIDIA's cutlass.operators 0.3.0
	TEST_ORIGINAL=$(NVIDIA_VENV)/bin/python $(NVIDIA_VENV)/bin/$(PYTEST) -n 2 -m "not timing" \
		tests/operators_face tests/pytorch/test_nvgemm_operators*.py

lint: lint-rust lint-others ## rustfmt, clippy, clang-format, ruff, mypy, comments and Markdown

lint-rust:
	cargo fmt --all --check
	nice cargo clippy --quiet --workspace --all-targets -- -D warnings

lint-others: $(REQUIRED)
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python scripts/lint_text.py
	$(BIN)/python scripts/check_crates.py
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

format: $(INSTALLED) ## apply the formatters
	cargo fmt --all
	$(BIN)/clang-format -i $(CPP_SOURCES)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-docs ## build the documentation site into site/; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

look: docs ## open each page of the site in a headless browser (CHROMIUM, else playwright's)
	$(REQUIRE) --extra docs playwright
	$(if $(CHROMIUM),,$(BIN)/playwright install --only-shell chromium)
	$(BIN)/python scripts/look_at_docs.py $(if $(CHROMIUM),--chromium $(CHROMIUM))

wheel: $(VENV)/bin/maturin ## build the wheel into dist/
	$(BIN)/maturin build --release --out dist

# zig links against the glibc of manylinux_2_28, for both architectures. The last two lines install
# the wheel of this machine, then build and install the source distribution, each in an empty
# environment, and run the demo outside of the checkout.
wheels: export CARGO_ZIGBUILD_PYTHON_PATH := $(abspath $(BIN))/python
wheels: $(VENV)/.installed-release ## wheels for x86_64 and aarch64 and the sdist, checked
	rm -rf dist
	rustup target add $(WHEEL_TARGETS)
	for target in $(WHEEL_TARGETS); do \
		$(BIN)/maturin build --release --zig --target $$target --compatibility manylinux_2_28 \
			--out dist || exit 1; \
	done
	$(BIN)/maturin sdist --out dist
	for wheel in dist/*.whl; do $(BIN)/auditwheel show $$wheel || exit 1; done
	$(BIN)/abi3audit --strict --report dist/*.whl
	$(BIN)/twine check --strict dist/*
	scripts/check_install.sh dist/*_$$(uname -m).whl
	scripts/check_install.sh dist/*.tar.gz

clean: ## remove build outputs
	rm -rf $(VENV) .venv-torch-* $(NVIDIA_VENV) target dist site site-pictures
	rm -f python/cutlass_api/_core*.so

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/bin/maturin: | $(VENV)/bin/python
	$(BIN)/pip install --quiet 'maturin>=1.9,<2' 'uv>=0.9,<1'

# The package with NVRTC, and NumPy for the demo.
$(VENV)/.built: $(SOURCES) | $(VENV)/bin/maturin
	$(BIN)/maturin develop --uv --release --quiet
	$(REQUIRE) --extra cuda numpy
	@touch $@

# What tests and lints import, but for the package.
$(REQUIRED): pyproject.toml | $(VENV)/bin/maturin
	$(REQUIRE) --extra cuda --extra test
	@touch $@

$(INSTALLED): $(REQUIRED) | $(VENV)/.built
	@touch $@

# The site is built from sources and the stub: without the extension.
$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/maturin
	$(REQUIRE) --extra docs
	@touch $@

$(VENV)/.installed-release: pyproject.toml | $(VENV)/bin/maturin
	$(REQUIRE) --extra release
	@touch $@

# In both environments, the package is this checkout's, with the extension that `.built` builds.
$(NVIDIA_VENV)/.installed: pyproject.toml Makefile | $(VENV)/.built
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(NVIDIA_VENV)
	printf '%s\n' $(NVIDIA_PACKAGES) | $(REQUIRE) --extra cuda --extra test --requirements - \
		--python $(NVIDIA_VENV)/bin/python
	cd $(NVIDIA_VENV)/lib/python3.*/site-packages && echo '$(CURDIR)/python' > rutlass.pth
	@touch $@

# The requirements of the tests with another torch.
.venv-torch-%/.installed: pyproject.toml | $(VENV)/.built
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-torch-$*
	echo 'torch==$*' | $(REQUIRE) --extra cuda --extra test --overrides - \
		--python .venv-torch-$*/bin/python
	cd .venv-torch-$*/lib/python3.*/site-packages && echo '$(CURDIR)/python' > rutlass.pth
	@touch $@
