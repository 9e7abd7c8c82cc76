# Works with make 3.81 and a POSIX shell.
#
# make install     .venv with the run-time parts
# make demo        set everything up, train with a planted straggler, show it, alert about it
# make test        set everything up and run the tests of every day: minutes
# make test-full   the other tests: every program, framework and fault, long random tests: under an hour
# make check       format, lint, types, import arrows, fast tests
# make coverage    the tests of every day with coverage, into htmlcov/
# make bench       measurements against peers, in .venv-bench
# make gpu         everything that a GPU makes possible, into benchmarks/results; without one it says what it skips
# make campaign    every fault on every rank, many quiet runs: long
# make format      format the code
# make docs        write what is made from the code: docs/cli.md and others, the manual page, the boards for Grafana
# make site        build the documentation site into site/; broken links fail
# make dist        sdist, wheel, SBOM and checksums into dist/, and the demo from the wheel in an empty environment
# make constraints refresh the versions in constraints.txt
# make clean       remove environments, caches and recorded runs of this folder
#
# Variables (make VAR=value TARGET):
#   PYTHON      interpreter to use                        default: the newest working python >= 3.11 on PATH
#   TORCH       what to install as torch                  default: torch==2.13.0; skipped where a usable torch is importable
#   TORCH_ARGS  more arguments for that pip install       e.g. --index-url https://download.pytorch.org/whl/cpu
#   VENV_ARGS   more arguments for making .venv           e.g. --system-site-packages in a vendor image with its own torch
#   DEMO_ARGS   arguments for `rankscope demo`            e.g. --fault host:1
#   TEST_ARGS   arguments for pytest                      e.g. -k exporter
#   GPU_ARGS    arguments for benchmarks/gpu/gpu.py           e.g. --without-tests --nccl-inspector libnccl-profiler-inspector.so

TORCH ?= torch==2.13.0
DEMO_ARGS ?=
TEST_ARGS ?=
GPU_ARGS ?=
SETUP = PYTHON="$(PYTHON)" TORCH="$(TORCH)" TORCH_ARGS="$(TORCH_ARGS)" VENV_ARGS="$(VENV_ARGS)" sh scripts/setup
BIN = .venv/bin
FOLDERS = exporter/src profiler/src dashboards/src alerts/src cli/src tests benchmarks
PYTEST = $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --instafail
# They run tests, and need .venv.
OF_TESTS = benchmarks.gpu.gpu benchmarks.gpu.gpu_nccl
BENCHMARKS = $(subst /,.,$(basename $(shell grep -l "^if __name__" benchmarks/*/*.py)))
CODE = $(FOLDERS) profiler/examples scripts/*.py

# Tests start hundreds of Python processes; without stored bytecode each of them compiles rankscope first.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-full check coverage bench gpu campaign format docs site dist constraints clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

install:
	@$(SETUP) .venv run

demo: install
	@$(BIN)/rankscope demo $(DEMO_ARGS)

test:
	@$(SETUP) .venv test
	$(PYTEST) -m "not full and not campaign" $(TEST_ARGS)

test-full:
	@$(SETUP) .venv test
	$(PYTEST) -m "(full or hypothesis) and not campaign and not alone" --hypothesis-profile=long $(TEST_ARGS)
	$(BIN)/python -m pytest --instafail -m "full and alone" $(TEST_ARGS)$(if $(TEST_ARGS), || [ $$? = 5 ]) # 5: TEST_ARGS chose none

check:
	@$(SETUP) .venv check
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github
	@[ ! -x $(BIN)/hadolint ] || $(BIN)/hadolint */docker/Dockerfile
	$(BIN)/python scripts/type_check.py $(CODE) & types=$$!; \
	$(BIN)/python -m pytest -q -n 2 --instafail -m "not slow and not gpu and not full and not campaign" -p no:cacheprovider; \
	tests=$$?; wait $$types && exit $$tests

coverage:
	@$(SETUP) .venv check
	$(BIN)/python -m pytest -q -n 4 -m "not gpu and not full and not campaign" --cov --cov-report=term:skip-covered --cov-report=html

format:
	@$(SETUP) .venv check
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

bench:
	@$(SETUP) .venv-bench bench
	@status=0; for script in $(filter-out %_job benchmarks.common.% $(OF_TESTS),$(BENCHMARKS)); do \
		echo "== $$script" >&2; .venv-bench/bin/python -m $$script || status=1; \
	done; exit $$status

gpu:
	@$(SETUP) .venv test
	@$(BIN)/python -m benchmarks.gpu.gpu $(GPU_ARGS)

campaign:
	@$(SETUP) .venv test
	$(BIN)/python -m pytest -m campaign --timeout 3600 $(TEST_ARGS)

docs:
	@$(SETUP) .venv test
	$(BIN)/python scripts/cli_docs.py >docs/cli.md
	$(BIN)/python scripts/measured.py >docs/measured.md
	$(BIN)/python scripts/schema_docs.py
	$(BIN)/python scripts/man_page.py
	$(BIN)/python -m rankscope.exporter.reference docs
	$(BIN)/python -m rankscope.dashboards.grafana.boards.generate
	$(BIN)/rankscope alerts rules show >exporter/helm/rankscope-exporter/files/rankscope.rules.yaml

site:
	@$(SETUP) .venv site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

dist:
	@$(SETUP) .venv dist
	@TORCH="$(TORCH)" TORCH_ARGS="$(TORCH_ARGS)" sh scripts/dist .venv

constraints:
	@$(SETUP) .venv check
	@sh scripts/constraints

clean:
	rm -rf .venv .venv-bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist site rankscope-runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
