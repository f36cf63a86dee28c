# Everything a developer runs. `make` alone lists the targets; each one prepares .venv first if it has to.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
CORE   := $(VENV)/.core
PEERS  := $(VENV)/.peers
LOG    := $(VENV)/setup.log
DIST   := dist
TORCH  := $(shell sed -n '/^torch==/p' constraints.txt)

# Build environments are made by pip as well, and read only the environment variables; newer versions of pip
# read the second one there.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PIP_INSTALL := $(PY) -m pip install --quiet -c constraints.txt

# One thread a worker: two workers with two threads each would fight for two cores.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile

# The core's own tests and, under build/, the core once more with sanitizers.
CORE_TESTS := $(MAKE) --no-print-directory -j 2 -C native/tests PYTHON=$(CURDIR)/$(PY)
ADDRESS    := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
THREAD     := -fsanitize=thread -g1

# The parts that are tested in moments: no engine runs in them.
QUICK := $(wildcard tests/project/test_import_order.py tests/project/test_repository.py \
           tests/test_cost.py tests/spec tests/plan)

.DEFAULT_GOAL := help
.PHONY: help setup look first-look check test test-long test-exhaustive test-everywhere sanitize bench bench-quick mutants data wheel format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
	  printf '  make %-12s %s\n' "$$name" "$$what"; done

setup: $(STAMP) $(CORE)  ## create .venv with the pinned dependencies (does nothing when it is up to date)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "setup: Python must be 3.11 or newer; got $$($(PYTHON) --version 2>&1). Use make PYTHON=python3.11." >&2; exit 1; }
	@test -x $(PY) || { echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@: > $(LOG)
	@echo "setup: installing $(TORCH) (minutes the first time)"
	@$(PIP_INSTALL) '$(TORCH)' >> $(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 1; }
	@echo "setup: installing regard and its development tools"
	@$(PIP_INSTALL) -e '.[dev]' >> $(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 1; }
	@touch $@ $(CORE)
	@sed 's/^/setup: the compiled core was NOT built; /' src/regard/core_not_built.txt 2>/dev/null || true
	@echo "setup: done, the log is $(LOG)"

# The compiled core, again when its sources change; where it cannot be built, the reason is printed.
$(CORE): $(STAMP) setup.py $(wildcard native/*.cpp native/*.h)
	@echo "setup: building the compiled core (half a minute)"
	@$(PIP_INSTALL) --no-deps -e . >> $(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 1; }
	@sed 's/^/setup: the compiled core was NOT built; /' src/regard/core_not_built.txt 2>/dev/null || true
	@touch $@

look: setup  ## the explorer: a page in your browser, on this machine alone; Ctrl-C ends it
	@$(VENV)/bin/regard look

first-look: setup  ## the library at work in a terminal: under ten seconds
	@$(PY) examples/first_look.py

check: setup  ## format, lint, types, import order, quick tests: under a minute
	@$(PY) -m ruff format --check --quiet . || { echo "check: run make format" >&2; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy
	@HYPOTHESIS_PROFILE=quick $(PYTEST) $(QUICK)

test: setup  ## every test not marked long: under 20 minutes on two cores
	@$(PYTEST) --durations 10

test-long: setup  ## the tests marked long (lengths, memory), one after another: under 40 minutes
	@$(PY) -m pytest -m long --durations 10

test-exhaustive: setup  ## the whole sweeps, of which test-long runs samples: random calls, wrong calls, architectures
	@$(PYTEST) -m exhaustive --durations 10

# A package without the compiled core, for a Python that looks there first. Threads that have nothing to do sleep: there
# are more of them than cores.
test-everywhere: setup  ## all tests again: with 2 and 4 threads, and without the compiled core: under 45 minutes
	@rm -rf build/without && mkdir -p build/without && cp -R src/regard build/without && rm -f build/without/regard/_core*
	@PYTHONPATH=$(CURDIR)/build/without $(PYTEST)
	@for threads in 2 4; do OMP_WAIT_POLICY=passive OMP_NUM_THREADS=$$threads $(PY) -m pytest -n 2 --dist loadfile || exit 1; done

# AddressSanitizer must be in the process before what it watches, and the C++ library right behind it, or else an
# exception ends Python. What Python and torch never free is theirs. It takes memory itself, so the laws of memory stay
# out.
sanitize: setup  ## the compiled core under sanitizers for memory, undefined behaviour and threads: under 12 minutes
	@$(CORE_TESTS) BUILD=$(CURDIR)/build/thread SANITIZE='$(THREAD)' run-threads
	@$(CORE_TESTS) BUILD=$(CURDIR)/build/address SANITIZE='$(ADDRESS)' run site
	@LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(CURDIR)/build/address/site \
	  $(PYTEST) --dist load -r fE -k 'odd_sizes or zero_lengths or native or decode or halves or additive or parts or leveled or receive' \
	  tests/engine/odd_sizes.py tests/engine/test_zero_lengths.py tests/engine/test_decode.py tests/engine/test_halves.py tests/engine/test_additive.py tests/engine/test_parts.py tests/engine/test_leveled.py tests/engine/test_balance.py tests/laws --ignore tests/laws/test_memory.py

bench: setup $(PEERS)  ## measure side by side with others, and write the results: under 40 minutes
	@$(PY) -m benchmarks.run

# What is only compared with stays out of the environment of the tests until then.
$(PEERS): $(STAMP)
	@echo "bench: installing the libraries to compare with (a minute)"
	@$(PIP_INSTALL) -e '.[bench]' >> $(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 1; }
	@touch $@ $(CORE)

bench-quick: setup  ## the same at small sizes, with the libraries that are installed: under 2 minutes
	@$(PY) -m benchmarks.run --quick

mutants: setup  ## break the code on purpose, one break at a time: each must fail its law
	@$(PY) tools/mutants.py

data:  ## fetch the small public data that models are trained on, into data/
	@$(PYTHON) tools/data.py

wheel: setup  ## build the wheel, from a source archive so that nothing stale gets in
	@$(PY) -m build --outdir $(DIST) .

format: setup  ## put all Python code into the house format, imports sorted
	@$(PY) -m ruff check --select I --fix --quiet .
	@$(PY) -m ruff format --quiet .

clean:  ## remove what building and testing left behind, but not .venv
	@rm -rf build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
