"""What the Dockerfiles promise, read from their text: no container is needed."""

from __future__ import annotations

import re

import pytest

from entrypoint.run.token import RAY_OF_IMAGE, SHELLS
from tests.container.dockerfiles import stages
from tests.support.repository import ROOT

TARGETS = {"cpu": "Dockerfile", "cuda": "Dockerfile", "rocm": "Dockerfile.rocm"}


@pytest.mark.parametrize("target", ["cuda", "rocm"])
@pytest.mark.parametrize("stage", ["", "-source"])
def test_every_image_is_made_of_the_same_last_layers(target: str, stage: str) -> None:
    cpu = stages("Dockerfile")[f"cpu{stage}"]
    other = stages(TARGETS[target])[f"{target}{stage}"]
    assert other.replace(f"{target}-", "cpu-") == cpu


def test_the_images_ray_looks_for_the_token_where_nodes_write_it() -> None:
    assert f"install entrypoint/run/ray.sh {RAY_OF_IMAGE}\n" in stages("Dockerfile")["cpu-source"]
    assert f"token={SHELLS}\n" in (ROOT / "entrypoint/run/ray.sh").read_text()
    assert str(RAY_OF_IMAGE.parent) in stages("Dockerfile")["cpu"]
    assert "RAY_AUTH" not in everything()  # a start past the entrypoint would lack its token


@pytest.mark.parametrize("target", TARGETS)
def test_every_package_comes_from_a_lock_with_hashes(target: str) -> None:
    text = "".join(body for name, body in stages(TARGETS[target]).items() if target in name)
    installs = re.findall(r"pip install(?:\\\n|[^&\n])*", text)
    assert installs
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install, install
        for lock in re.findall(r"-r /(requirements/\S+)", install):
            assert (ROOT / lock).exists()


def test_the_cuda_image_has_nccls_libraries_and_no_compiler_but_tritons() -> None:
    (line,) = re.findall(r"install --yes[^&]+", stages("Dockerfile")["cuda-system"])
    packages = set(line.replace("\\\n", " ").split())
    assert {"libibverbs1", "ibverbs-providers"} < packages
    assert {"gcc", "libc6-dev", "python3-dev"} < packages  # Triton's
    assert not {"g++", "build-essential", "clang"} & packages
    locked = (ROOT / "requirements" / "cuda.lock").read_text()
    assert not re.findall(r"^nvidia-(?:cuda-nvcc|nvvm)\b", locked, flags=re.MULTILINE)


def test_cudas_headers_are_those_of_torchs_cuda() -> None:
    locked = (ROOT / "requirements" / "cuda.lock").read_text()
    found = re.findall(r"^nvidia-cuda-(crt|nvrtc|runtime)==(\d+\.\d+)", locked, flags=re.MULTILINE)
    assert dict(found) == dict.fromkeys(("crt", "nvrtc", "runtime"), "13.0")


def test_the_build_context_has_what_the_dockerfiles_copy_and_no_tests() -> None:
    allowed = (ROOT / ".dockerignore").read_text().split()
    assert allowed[0] == "*"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", everything(), flags=re.MULTILINE)
    for path in {word.split("/")[0] for line in copied for word in line.split()}:
        assert f"!{path}" in allowed or f"!{path}/" in allowed
    assert not any("tests" in line for line in allowed)


def everything() -> str:
    return "".join((ROOT / name).read_text() for name in sorted(set(TARGETS.values())))
