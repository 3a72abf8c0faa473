# Each verb does all it needs on a fresh machine. FUSE, runc and criu need root: as another user, sudo is used.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PYTHON := .venv/bin/python
# as many at a time as there are processors, four at most: each may start servers, mounts and containers
PYTEST := $(SUDO) .venv/bin/pytest -n logical --maxprocesses 4

.PHONY: help setup demo check test test-full generate bench build clean

help: ## these lines
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

setup: ## system packages, criu and .venv; seconds when nothing is missing
	@tools/setup.sh

demo: setup ## a real OCR server started cold, snapshotted and restored, side by side
	@$(SUDO) $(PYTHON) examples/ocr/demo.py

check: setup ## lint, format, types, generated files
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	MYPYPATH=examples/ocr .venv/bin/mypy examples/ocr/*.py
	$(PYTHON) tools/generate.py --check

test: check ## the whole suite, without the slow proofs
	$(PYTEST)

test-full: check ## the suite with the slow proofs
	@tools/setup.sh --full
	$(PYTEST) --full

generate: setup ## write completions and man pages again
	$(PYTHON) tools/generate.py

bench: setup ## timings as ratios to a peer in the same run, medians of five; wants a quiet machine
	@$(SUDO) $(PYTHON) bench/run.py

build: setup ## a wheel in dist/
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove what demo, build and tests made; .venv stays
	@if [ -x $(PYTHON) ] && [ -d .demo ]; then $(SUDO) $(PYTHON) examples/ocr/demo.py --clean; fi
	$(SUDO) rm -rf .demo dist build .mypy_cache .ruff_cache .pytest_cache
