# Everything a developer runs. `make` alone lists the targets; each one prepares .venv first if needed.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
EXPLORER := $(VENV)/.explorer
CORE   := $(VENV)/.core
PEERS  := $(VENV)/.peers
DIST   := dist

# pip also creates build environments, which read only the environment variables; newer versions of pip read the second.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PIP_INSTALL := $(PY) -m pip install --quiet -c constraints.txt

SETUP := $(PYTHON) tools/environment.py

# One thread per worker. The third worker uses a core while another waits for a browser or a process.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 3 --dist loadfile

# The tests of the core and, under build/, the core built with sanitizers.
CORE_TESTS := $(MAKE) --no-print-directory -j 2 -C csrc/tests PYTHON=$(CURDIR)/$(PY)
CLANG      := $(shell for name in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do command -v $$name && break; done)
ADDRESS    := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
THREAD     := -fsanitize=thread -g1

# The tools that check the page. They are development tools only: the page itself has no dependency and no build step.
NODE_STAMP := node_modules/.installed

# The theme prints a notice about its successor.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs

# Parts whose tests take seconds: no backend runs in them.
QUICK := $(wildcard tests/project/test_import_order.py tests/project/test_repository.py \
           tests/test_cost.py tests/expr tests/call tests/plan)

.DEFAULT_GOAL := help
.PHONY: help setup explore first-look check check-js test test-long test-exhaustive test-everywhere test-clang test-clang-core test-arm64 compile-commands sanitize bench bench-quick mutants data wheel format clean docs docs-serve tutorials

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
	  printf '  make %-15s %s\n' "$$name" "$$what"; done

setup: $(STAMP) $(CORE)  ## create .venv with all development tools (does nothing when it is up to date)

$(STAMP): pyproject.toml constraints.txt
	@$(SETUP) dev

# Without the tools of development and tests.
$(EXPLORER): pyproject.toml constraints.txt
	@$(SETUP) explorer

# Rebuild the core when its sources change.
$(CORE): setup.py $(wildcard csrc/*.cpp csrc/*/*.cpp csrc/*/*.h csrc/*/*/*.h csrc/flags.mk)
	@$(SETUP) core

explore: $(EXPLORER) $(CORE)  ## open the explorer in your browser, served on this machine only; stop with Ctrl-C
	@$(VENV)/bin/regard explore

first-look: setup  ## show the library in a terminal: under ten seconds
	@$(PY) examples/first_look.py

check: setup  ## format, lint, types, import order, quick tests: under a minute
	@$(PY) -m ruff format --check --quiet . || { echo "check: run make format" >&2; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy
	@HYPOTHESIS_PROFILE=quick $(PYTEST) $(QUICK)

	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory check-js; \
	  else echo "check: the page is not checked; install nodejs and npm to check its types, lint and unit tests"; fi

check-js: $(NODE_STAMP)  ## the page: types, lint, format and unit tests, with node; under ten seconds
	@npm run --silent lint
	@npm run --silent types
	@npm run --silent test

$(NODE_STAMP): package.json package-lock.json
	@echo "check-js: installing the tools that check the page"
	@npm install --silent --no-save --no-audit --no-fund
	@touch $@

test: setup  ## every law, mechanism and page test: about 6 minutes on two cores
	@$(PYTEST) --durations 10

# A large family of parametrized tests runs a sample in `make test` (tests/sampling.py) and the other cases here; a test
# with generated examples runs 20 there and 100 here.
test-long: setup  ## the tests marked long; those of lengths one after another, for their memory: under 40 minutes
	@HYPOTHESIS_PROFILE=thorough $(PYTEST) -n 2 -m 'long or hypothesis' --ignore tests/long --durations 10
	@$(PY) -m pytest -m long tests/long

test-exhaustive: setup  ## all generated calls of the sweeps (test-long runs a sample): random calls, wrong calls, architectures
	@$(PYTEST) -m exhaustive --durations 10

# A copy of the package without the compiled core comes first on the path. Idle threads sleep, since there are more threads
# than cores.
test-everywhere: setup  ## all tests again: with 2 and 4 threads, and without the compiled core: under 45 minutes
	@rm -rf build/without && mkdir -p build/without && cp -R src/regard build/without && rm -f build/without/regard/_core*
	@PYTHONPATH=$(CURDIR)/build/without $(PYTEST)
	@for threads in 2 4; do OMP_WAIT_POLICY=passive OMP_NUM_THREADS=$$threads $(PY) -m pytest -n 2 --dist loadfile || exit 1; done

test-clang-core:  ## the core's own tests, built with Clang 14 or newer: a minute
	@test -n "$(CLANG)" || { echo "test-clang: clang++ is required. Install it with apt-get install clang." >&2; exit 1; }
	@$(CORE_TESTS) PYTHON=$(PYTHON) CXX=$(CLANG) BUILD=$(CURDIR)/build/clang run

test-clang: setup test-clang-core  ## also the laws on a core built with Clang, and clangd on every file: under 15 minutes
	@$(PY) tools/compile_commands.py --check
	@$(CORE_TESTS) CXX=$(CLANG) BUILD=$(CURDIR)/build/clang-release OPTIMIZE=-O3 package
	@PYTHONPATH=$(CURDIR)/build/clang-release/package $(PYTEST) tests/laws tests/backends --deselect tests/backends/test_core.py

test-arm64:  ## the core's own tests for 64-bit ARM, cross-compiled and run by an emulator: under 15 minutes
	@command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null || { \
	  echo "test-arm64: a cross compiler and an emulator are required. Install them with apt-get install g++-aarch64-linux-gnu qemu-user." >&2; exit 1; }
	@$(CORE_TESTS) PYTHON=$(PYTHON) CXX=aarch64-linux-gnu-g++ RUN='qemu-aarch64 -L /usr/aarch64-linux-gnu' BUILD=$(CURDIR)/build/arm64 run

compile-commands:  ## write compile_commands.json, which editors read to check the files of csrc
	@$(PYTHON) tools/compile_commands.py

# AddressSanitizer must be loaded before the core, and the C++ library right after it, or an exception ends Python. Leaks of
# Python and torch are ignored. The sanitizer needs memory itself, so the memory laws are left out.
sanitize: setup  ## run the core under sanitizers for memory, undefined behavior and threads: under 12 minutes
	@$(CORE_TESTS) BUILD=$(CURDIR)/build/thread SANITIZE='$(THREAD)' run-threads
	@$(CORE_TESTS) BUILD=$(CURDIR)/build/address SANITIZE='$(ADDRESS)' run package
	@LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(CURDIR)/build/address/package \
	  $(PYTEST) --dist load -r fE -k 'odd_sizes or zero_lengths or native or decode or half_precision or additive or weight_tiles or thresholded or column_sums' \
	  tests/backends/odd_sizes.py tests/backends/test_zero_lengths.py tests/backends/test_decode.py tests/backends/test_half_precision.py tests/backends/test_additive.py tests/backends/shared/test_weight_tiles.py tests/backends/test_thresholded.py tests/backends/shared/test_sinkhorn.py tests/laws --ignore tests/laws/test_memory.py

docs: setup  ## build the documentation site in build/site, without a network: a minute; then open build/site/index.html
	@mkdir -p build && { $(MKDOCS) build --strict > build/docs.log 2>&1 || { grep -v '^INFO' build/docs.log >&2; exit 1; }; }
	@echo "docs: open build/site/index.html"

docs-serve: setup  ## show the documentation while you write it, at http://127.0.0.1:8000; stop with Ctrl-C
	@$(MKDOCS) serve --livereload

tutorials: setup  ## run the tutorials again and write their notebooks: under two minutes
	@$(PY) -m tools.docs.tutorials

bench: setup $(PEERS)  ## compare with other libraries and write the results: under 40 minutes
	@$(PY) -m benchmarks.run

# Libraries that only the benchmarks need.
$(PEERS): $(STAMP)
	@echo "bench: installing the libraries to compare with (a minute)"
	@$(PIP_INSTALL) -e '.[bench]'
	@touch $@ $(CORE)

bench-quick: setup  ## the same at small sizes, with the installed libraries: under 2 minutes
	@$(PY) -m benchmarks.run --quick

mutants: setup  ## apply each mutant of tools/mutants to a copy of the code: its tests must fail
	@$(PY) tools/mutants.py

data:  ## download the small public datasets for training to data/
	@$(PYTHON) tools/fetch_data.py

wheel: setup  ## build the wheel from a source archive, so that no stale file gets in
	@$(PY) -m build --outdir $(DIST) .

format: setup  ## format all code and sort imports
	@$(PY) -m ruff check --select I --fix --quiet .
	@$(PY) -m ruff format --quiet .
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory $(NODE_STAMP) && npm run --silent format; fi

clean:  ## remove build and test artifacts, but not .venv
	@rm -rf build dist node_modules src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
