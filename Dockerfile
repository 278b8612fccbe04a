# One image for every node of a cluster; a node's role comes from its environment.
#
#   docker build --build-arg FLAVOUR=cuda --tag rollcall:cuda .
#   docker build --build-arg FLAVOUR=cpu --build-arg PIP_EXTRA_INDEX_URL=… --tag rollcall:cpu .
#   docker buildx bake cuda        # docker-bake.hcl: cpu, cuda, cuda-verl, rocm
#
# The address is that of the index with torch's CPU builds, which the main index does not have; the
# lock's hash admits no other build. A directory of wheels does as well: --build-arg PIP_FIND_LINKS=…
#
# Each flavour has its own stages FLAVOUR-system, what the distribution gives, and FLAVOUR-venv, the
# locked dependencies, made anew when a lock changes. The last two stages are the same for all:
# `source`, this repository as a package, made anew in seconds; and `image`.

# cpu, cuda, cuda-verl (cuda, and verl in an environment of its own at /opt/verl), or rocm.
ARG FLAVOUR=cuda
# What the image stands on: Debian or Ubuntu, with Python 3.11 (cpu) or 3.12 (cuda, rocm).
ARG BASE_IMAGE
# What compiles for CUDA: the same distribution and Python, with nvcc.
ARG CUDA_BUILD_IMAGE
# Who runs a container, if the platform does not say it. 0:0 for RunPod and SkyPilot, which need root.
ARG RUN_AS=1000:1000
# 0: the cuda image is built in minutes, without flash-attn; packed samples take torch's flash kernels.
ARG WITH_FLASH_ATTN=1

# ---- cpu
# libnuma: what vLLM for CPUs binds its memory with.
FROM ${BASE_IMAGE:-debian:bookworm-slim} AS cpu-system
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates libnuma1 python3 python3-venv tini \
 && rm -rf /var/lib/apt/lists/*

FROM cpu-system AS cpu-venv
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PATH=/opt/venv/bin:$PATH
COPY requirements/cpu.lock requirements/torch.lock /requirements/
# torch's wheel carries 120 MB of its own tests.
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --no-deps --require-hashes \
      -r /requirements/torch.lock -r /requirements/cpu.lock \
 && rm -r /opt/venv/lib/python3*/site-packages/torch/test \
          /opt/venv/lib/python3*/site-packages/torch/bin/test_*

# ---- cuda
# CUDA's libraries are torch's packages: of NVIDIA's images the smallest will do.
FROM ${BASE_IMAGE:-nvidia/cuda:13.0.2-base-ubuntu24.04} AS cuda-system
# Triton builds the launchers of its kernels when they first run: vLLM needs a C compiler with
# Python's headers in the image. There is neither nvcc nor a C++ compiler. NCCL loads libibverbs and
# the adapters' providers; without them it uses TCP on InfiniBand and RoCE.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      ca-certificates gcc ibverbs-providers libc6-dev libibverbs1 python3 python3-dev python3-venv tini \
 && rm -rf /var/lib/apt/lists/*
# Any vLLM tries its sampler when it starts. FlashInfer's would be compiled then, with nvcc.
ENV VLLM_USE_FLASHINFER_SAMPLER=0

FROM ${CUDA_BUILD_IMAGE:-nvidia/cuda:13.0.2-devel-ubuntu24.04} AS cuda-compiler
RUN apt-get update \
 && apt-get install --yes --no-install-recommends build-essential python3-dev python3-venv

FROM cuda-compiler AS cuda-build
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PATH=/opt/venv/bin:$PATH
COPY requirements/cuda.lock requirements/cuda-build.lock requirements/flash-attn.lock /requirements/
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --no-deps --require-hashes -r /requirements/cuda.lock
# A100, H100 and H200, B200. DeepSpeed's ops are otherwise built on first use, with nvcc; CPU Adam is
# left out, as it would be compiled for the processor of the machine that builds the image. Without a
# GPU in the build, DeepSpeed would take the CPU for its accelerator: then it builds other ops, and
# ignores them on a GPU.
ARG TORCH_CUDA_ARCH_LIST="8.0 9.0 10.0"
ARG MAX_JOBS=4
RUN DS_ACCELERATOR=cuda DS_BUILD_FUSED_ADAM=1 DS_BUILD_UTILS=1 \
    pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
      -r /requirements/cuda-build.lock
# Each job takes about 8 GB of memory. Without its lock the image has a digest of its own.
ARG FLASH_ATTN_CUDA_ARCHS="80;90;100"
ARG WITH_FLASH_ATTN
RUN if [ "$WITH_FLASH_ATTN" = 0 ]; then rm /requirements/flash-attn.lock; else \
      FLASH_ATTENTION_FORCE_BUILD=TRUE \
      pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
        -r /requirements/flash-attn.lock \
    ; fi

FROM cuda-system AS cuda-venv
ENV PATH=/opt/venv/bin:$PATH
COPY --from=cuda-build /requirements /requirements
COPY --from=cuda-build /opt/venv /opt/venv

# ---- cuda-verl
FROM cuda-compiler AS cuda-verl-build
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PATH=/opt/verl/bin:$PATH
COPY requirements/verl.lock requirements/verl-build.lock /requirements/
RUN python3 -m venv /opt/verl \
 && pip install --no-cache-dir --no-deps --require-hashes -r /requirements/verl.lock
# As in cuda-build.
ARG FLASH_ATTN_CUDA_ARCHS="80;90;100"
ARG TORCH_CUDA_ARCH_LIST="8.0 9.0 10.0"
ARG MAX_JOBS=4
RUN FLASH_ATTENTION_FORCE_BUILD=TRUE \
    pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
      -r /requirements/verl-build.lock

FROM cuda-venv AS cuda-verl-venv
COPY --from=cuda-verl-build /requirements /requirements
COPY --from=cuda-verl-build /opt/verl /opt/verl

# ---- rocm: a base that brings Python 3.12, ROCm, and the torch, Triton, flash-attn and vLLM for AMD GPUs
FROM ${BASE_IMAGE:-vllm/vllm-openai-rocm:v0.29.0} AS rocm-system
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv tini \
 && rm -rf /var/lib/apt/lists/*
# RCCL needs it on MI300: without it a queue that returns scratch memory stalls the others.
ENV HSA_NO_SCRATCH_RECLAIM=1

FROM rocm-system AS rocm-venv
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PATH=/opt/venv/bin:$PATH
COPY requirements/rocm.lock requirements/rocm-build.lock /requirements/
# The environment sees the packages of the base, and puts the locked ones before them.
RUN python3 -m venv --system-site-packages /opt/venv \
 && pip install --no-cache-dir --no-deps --require-hashes -r /requirements/rocm.lock \
 && pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
      -r /requirements/rocm-build.lock

# ---- every flavour
FROM ${FLAVOUR}-venv AS source
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY contract contract
COPY env env
COPY trainer trainer
COPY entrypoint entrypoint
COPY rollcall rollcall
COPY rollcall_torch.py ./
COPY compose compose
# Nodes compare this digest of source and locks at the roll call: one image everywhere.
RUN find . /requirements -type f -print0 | LC_ALL=C sort --zero-terminated \
      | xargs --null sha256sum | sha256sum | cut --characters=1-16 > /tmp/digest \
 && mv /tmp/digest entrypoint/config/image.digest \
 && pip install --no-cache-dir --no-deps --no-build-isolation --no-index --target /opt/rollcall . \
 && install entrypoint/run/ray.sh /opt/rollcall/bin/ray

FROM ${FLAVOUR}-venv AS image
# A user id that /etc/passwd does not know has no name, and torch asks for one.
ENV PATH=/opt/rollcall/bin:$PATH PYTHONUNBUFFERED=1 USER=rollcall
# Nothing of the image depends on the user: any number does (`--user 4711`), on a read-only root too.
# The home is made in /tmp. Ubuntu's images have a user 1000.
RUN mkdir --mode=1777 /checkpoints /workspace \
 && if id ubuntu 2> /dev/null; then userdel --remove ubuntu; fi \
 && useradd --uid 1000 --user-group --home-dir /nonexistent --no-create-home rollcall \
 && echo /opt/rollcall > "$(python -c 'import site; print(site.getsitepackages()[0])')/rollcall.pth"
WORKDIR /workspace
# GCS, dashboard and jobs, control port: on the head. The other ports of Ray are between nodes.
EXPOSE 6379 8265 8267
# The entrypoint turns SIGTERM into a save at the next step boundary and exit code 143; give it
# time: `docker stop --time 60`.
STOPSIGNAL SIGTERM
# A head answers on its control port. Where nothing listens the node is a worker, or a head that is
# not so far yet: healthy for as long as its process runs.
HEALTHCHECK --interval=15s --timeout=5s CMD ["bash", "-c", "exec 3<>/dev/tcp/${ROLLCALL_BIND:-127.0.0.1}/${ROLLCALL_CONTROL_PORT:-8267} || exit 0; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; read -r _ status _ <&3; [ \"$status\" = 200 ]"]
# tini is process 1: it reaps what Ray's jobs leave behind and passes signals on.
ENTRYPOINT ["tini", "--", "python", "-P", "-m", "rollcall"]
COPY --from=source /opt/rollcall /opt/rollcall
ARG RUN_AS
USER ${RUN_AS}
LABEL org.opencontainers.image.title="Rollcall" \
      org.opencontainers.image.description="Turns any set of machines into a supervised RLHF cluster" \
      org.opencontainers.image.licenses="Apache-2.0"
