PY := .venv/bin/python
STAMP := .venv/.installed
PROMPT ?= Write one sentence about a crow.
export QUESTION := $(value PROMPT)# as it was typed: make expands no $ in it
PIP := $(PY) -m pip --disable-pip-version-check

.PHONY: help run test check dev protos fmt lint types arch bench gpu
.DEFAULT_GOAL := help

help:    ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | expand -t 9

run: $(STAMP)  ## a whole cluster on this machine, and an answer (ONCE=1 to exit after it, PROMPT="...", RAW=1)
	@exec .venv/bin/crowfly up --ask="$$QUESTION" $(if $(RAW),--raw) $(if $(ONCE),--once)

test: $(STAMP)  ## the whole test suite (no GPU needed)
	@.venv/bin/crowfly model pull smollm2
	$(PY) -m pytest

check: lint types arch test  ## everything CI runs

dev: $(STAMP)  ## .venv with everything installed editable

protos: $(STAMP)  ## regenerate the stubs in src/ from protos/
	.venv/bin/buf lint
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) -m grpc_tools.protoc -I protos --python_out=src --grpc_python_out=src --mypy_out=src --mypy_grpc_out=src protos/crowfly/*/*.proto
	rm -rf .mypy_cache

fmt: $(STAMP)  ## format the code
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .

lint: $(STAMP)  ## format and lint, without changing anything
	.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/buf lint

types: $(STAMP)  ## mypy --strict
	.venv/bin/mypy

arch: $(STAMP)  ## who may import whom
	.venv/bin/lint-imports

bench: $(STAMP)  ## every benchmark; results into benchmarks/results/
	$(PY) -m benchmarks

gpu:  ## what needs a CUDA device; on a machine with torch and pytest alone: make gpu PY=python3
	PYTHONPATH=src:services/worker $(PY) -m pytest -c tests/gpu/pytest.ini --rootdir=. --confcutdir=. tests/gpu

# Debian's python3 has no ensurepip until python3-venv is installed, so pip comes from outside.
$(STAMP): pyproject.toml constraints.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "crowfly needs Python 3.11 or newer: apt-get install python3.11"; exit 2; }
	@$(PY) -c '' 2>/dev/null || python3 -m venv --clear --without-pip .venv
	@$(PY) -m pip --version >/dev/null 2>&1 || python3 -m pip --version >/dev/null 2>&1 || { echo "No pip for python3: apt-get install python3-pip, or 'python3 -m ensurepip'"; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || python3 -m pip --disable-pip-version-check --python $(PY) install 'pip>=25.1'
	@echo "Installing into .venv (the first time this takes a few minutes)"
	@$(PIP) install -c constraints.txt -e '.[local]' --group dev
	@touch $(STAMP)
