# `make run` and `make test` do all set-up themselves on a fresh Debian 12 or 13.
.DEFAULT_GOAL := help
.PHONY: help venv lock run test test-unit test-all test-changed test-cluster test-fresh soak record check bench wheel wheels sbom deb image chart proto crds clean clean-all

# Another Python than the one that is found, with an environment of its own, e.g. make test-unit PYTHON=python3.13.
export PYTHON ?=
export PATH := $(CURDIR)/.venv$(if $(PYTHON),-$(notdir $(PYTHON)))/bin:$(PATH)
# Programs of the project are started by the hundred: compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
# Options for `make run`, e.g. make run LAB="--firmware uefi".
LAB ?=
# Packages that `make lock` takes newer versions of, e.g. make lock NEWER=aiohttp; NEWER=all.
NEWER ?=
# The time of what is built is that of the sources: the same sources give the same bytes.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# The Debian that `make deb` and `make wheels` build for, bookworm or trixie: this one, else bookworm.
SUITE ?= $(shell . /etc/os-release 2>/dev/null; [ "$$VERSION_CODENAME" = trixie ] && echo trixie || echo bookworm)
# Which recordings `make record` makes, and what `make bench` measures; all without one.
SUBJECT ?=
# `make bench fleet` is `make bench SUBJECT=fleet`: what stands behind bench is no target.
ifeq (bench,$(firstword $(MAKECMDGOALS)))
SUBJECT := $(or $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS)),$(SUBJECT))
$(eval $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS)):;@:)
endif
# Tests wait more than they compute: two workers more than processors. Files stay whole, for what their tests share.
JOBS ?= $(shell echo $$(($$(nproc) + 2)))

help:
	@echo 'make run     boot a virtual machine through the whole stack (LAB="--firmware uefi", LAB="--full")'
	@echo 'make test    set-up, unit tests, and one real thing of each kind: clients, boots, a browser (JOBS=N: so many at once)'
	@echo 'make test-unit  only what needs no root, no network namespace and no Debian package (PYTHON=python3.13: with that one)'
	@echo 'make test-all   the rest: other clients and firmware, packages, images, the chart, attacks, faults, Go as an oracle'
	@echo 'make test-changed  the unit tests of what differs from origin/main (SINCE=COMMIT: from that), and of what imports it'
	@echo 'make test-cluster  the chart on a real Kubernetes: install, boot, upgrade, drain, uninstall (root, Debian; Go builds it at first)'
	@echo 'make test-fresh  a fresh Debian 12 and a fresh 13: make run, pipx, a bundle without a route, the first machine of README (root; 20 minutes)'
	@echo 'make soak    the attacks and loads that take minutes to an hour'
	@echo 'make record  what the tests compare with, anew from a real Kubernetes (SUBJECT="cel conformance")'
	@echo 'make check   lint, formatting, types, layers, plain English, packages and their licences'
	@echo 'make bench   benchmarks, as ratios to peers (make bench fleet: only these)'
	@echo 'make venv    make .venv only'
	@echo 'make lock    deploy/requirements.txt anew, after a change of pyproject.toml (NEWER=PACKAGE, NEWER=all)'
	@echo 'make wheel   the wheel, and the list of all it needs to run (CycloneDX), into dist/'
	@echo 'make deb     the Debian package for this Debian (SUITE=bookworm, SUITE=trixie: for 12, for 13), into dist/'
	@echo 'make image   the container image (OCI) and the list of what is in it (CycloneDX), into dist/ (root, Debian)'
	@echo 'make wheels  what deploy/install.sh installs, into dist/wheels (SUITE as above)'
	@echo 'make chart   the Helm chart, into dist/; and what is made of it: deploy/kustomize, deploy/rbac.yaml (builds helm at first)'
	@echo 'make proto   generate the gRPC stubs again'
	@echo 'make clean-all  remove all that these commands have left: environments, cache, Debian packages (CONFIRM=1)'
	@echo 'make crds    generate deploy/crds again'

venv:
	@deploy/setup.sh venv

lock:
	@deploy/setup.sh lock $(NEWER)

run:
	@deploy/setup.sh run $(LAB)
	tinkedge lab $(LAB)
	@deploy/setup.sh left-behind

# One run for all, so that machines boot while unit tests compute.
RUN_TESTS = python -m tests.second_look -n $(JOBS) --dist loadfile --no-loadscope-reorder

test:
	@deploy/setup.sh test
	$(RUN_TESTS) -m 'unit or smoke' tests/boot tests/interop tests/unit

test-all: venv
	@deploy/setup.sh packages lab uefi test test-all
	@deploy/setup.sh venv go
	@deploy/setup.sh kubectl
	@deploy/setup.sh ipxe
	@deploy/setup.sh shim
	@deploy/setup.sh u-boot
	@deploy/setup.sh bmc-emulators
	@deploy/setup.sh cloud-init
	@deploy/setup.sh installed bookworm
	@deploy/setup.sh installed $(SUITE)
	@python -m tests.programs helm
	$(RUN_TESTS) -m 'not smoke and not soak' tests/boot tests/interop

test-unit: venv
	python -m pytest -n $(JOBS) tests/unit

# What SINCE is to be compared with, e.g. make test-changed SINCE=HEAD~1.
SINCE ?= origin/main
test-changed: venv
	python -m tests.changed --since $(SINCE) -n $(JOBS)

test-cluster: venv
	@deploy/setup.sh venv go
	@deploy/setup.sh packages lab test test-all cluster
	@deploy/setup.sh kubectl
	python -m tests.cluster

test-fresh: venv
	@deploy/setup.sh packages lab test test-all
	@deploy/setup.sh kubectl
	@deploy/setup.sh installed bookworm
	@deploy/setup.sh installed trixie
	python -m tests.fresh
	python -m pytest tests/fresh

soak: venv
	@deploy/setup.sh venv go
	@deploy/setup.sh packages lab uefi arm64 test test-all bench
	@deploy/setup.sh kubectl
	@deploy/setup.sh ipxe
	@deploy/setup.sh shim
	@deploy/setup.sh u-boot
	@deploy/setup.sh riscv64
	python -m pytest -m soak -o faulthandler_timeout=0
	CHAOS_WORKFLOWS=$${CHAOS_WORKFLOWS:-1000} python -m pytest tests/interop/test_chaos.py -o faulthandler_timeout=0

record: venv
	@deploy/setup.sh venv go
	@deploy/setup.sh packages bench
	python -m tests.record $(SUBJECT)

check: venv
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	python -m tests.lint.plain_english
	python -m tests.lint.names
	python -m deploy.supply check

wheel: sbom
	python -m pip wheel --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation -w dist .

sbom: venv
	python -m deploy.supply sbom dist/tinkedge.cdx.json

deb: venv
	@python -m deploy.package deb --suite $(SUITE)

wheels: venv
	@python -m deploy.package wheels --suite $(SUITE)

image: venv
	@deploy/setup.sh packages lab
	@python -m deploy.package image

chart: venv
	@deploy/setup.sh venv go
	@python -m deploy.package chart --helm $$(python -m tests.programs helm)

bench: venv
	@deploy/setup.sh venv go
	@deploy/setup.sh packages bench
	@deploy/setup.sh tftpd
	python -m tests.bench $(SUBJECT)

proto: venv
	python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. proto/workflow.proto proto/output.proto proto/inventory.proto
	python -m grpc_tools.protoc -I . --python_out=. --mypy_out=. proto/older.proto proto/oldest.proto

crds: venv
	tinkedge crds --out deploy/crds
	tinkedge crds --bmc --out deploy/crds/bmc
	tinkedge crds --v1alpha1 --out deploy/crds/v1alpha1

clean:
	rm -rf .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

clean-all:
	@deploy/setup.sh remove
	@$(MAKE) --no-print-directory clean
