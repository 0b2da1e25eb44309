# `make run` and `make test` do all set-up themselves on a fresh Debian 12 machine.
.DEFAULT_GOAL := help
.PHONY: help venv run test check bench proto crds clean

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Options for `make run`, e.g. make run LAB="--firmware uefi".
LAB ?=

help:
	@echo 'make run     boot a virtual machine through the whole stack (LAB="--firmware uefi", LAB="--full")'
	@echo 'make test    run all tests, with real clients and real boots'
	@echo 'make check   lint, formatting, types, layers'
	@echo 'make bench   benchmarks, as ratios to peers'
	@echo 'make venv    make .venv only'
	@echo 'make proto   generate the gRPC stubs again'
	@echo 'make crds    generate deploy/crds again'

venv:
	@deploy/setup.sh venv

run: venv
	@deploy/setup.sh packages lab
	@deploy/setup.sh kubectl
	@tinkedge lab $(LAB)

test: venv
	@deploy/setup.sh packages lab test
	@deploy/setup.sh kubectl
	@deploy/setup.sh ipxe
	@deploy/setup.sh cloud-init
	python -m pytest

check: venv
	ruff check .
	ruff format --check .
	mypy
	lint-imports

bench: venv
	@deploy/setup.sh packages bench
	@deploy/setup.sh tftpd
	python -m tests.bench

proto: venv
	python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. proto/workflow.proto proto/output.proto

crds: venv
	tinkedge crds --out deploy/crds

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
