"""What the Dockerfile promises, read from its text: no container is needed."""

from __future__ import annotations

import re

import pytest

from entrypoint.run.token import RAY_OF_IMAGE, SHELLS
from tests.container import cuda_check
from tests.container.dockerfile import DOCKERFILE, stages
from tests.support.repository import ROOT

OTHER_RAY = "tests/container/host/Dockerfile.other-ray"


def bake(name: str) -> list[str]:
    """The words between brackets of one attribute of docker-bake.hcl."""
    (listed,) = re.findall(rf"\b{name} *= *\[(.+)\]", (ROOT / "docker-bake.hcl").read_text())
    return re.findall(r'"([^"]+)"', listed)


FLAVOURS = bake("flavour")


def test_the_bake_file_has_each_flavour_of_the_dockerfile_and_no_other() -> None:
    environments = [name for name in stages() if name.endswith("-venv")]
    assert [f"{flavour}-venv" for flavour in FLAVOURS] == environments
    assert set(bake("targets")) <= set(FLAVOURS)
    (default,) = re.findall(r"^ARG FLAVOUR=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert default in FLAVOURS
    assert [*bases()][-1] == "image"  # what a build without --target makes


def test_the_images_ray_looks_for_the_token_where_nodes_write_it() -> None:
    assert f"install entrypoint/run/ray.sh {RAY_OF_IMAGE}\n" in stages()["source"]
    assert f"token={SHELLS}\n" in (ROOT / "entrypoint/run/ray.sh").read_text()
    assert str(RAY_OF_IMAGE.parent) in stages()["image"]
    # A start past the entrypoint would lack its token.
    assert "RAY_AUTH" not in DOCKERFILE.read_text()


def test_every_package_comes_from_a_lock_with_hashes() -> None:
    installs = re.findall(r"pip install(?:\\\n|[^&\n])*", "".join(stages().values()))
    assert len(installs) > len(FLAVOURS)
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install, install
        for lock in re.findall(r"-r /(requirements/\S+)", install):
            assert (ROOT / lock).exists()


def test_the_cuda_image_has_nccls_libraries_and_no_compiler_but_tritons() -> None:
    (line,) = re.findall(r"install --yes[^&]+", stages()["cuda-system"])
    packages = set(line.replace("\\\n", " ").split())
    assert {"libibverbs1", "ibverbs-providers"} < packages
    assert {"gcc", "libc6-dev", "python3-dev"} < packages  # Triton's
    assert not {"g++", "build-essential", "clang"} & packages
    locked = (ROOT / "requirements" / "cuda.lock").read_text()
    assert not re.findall(r"^nvidia-(?:cuda-nvcc|nvvm)\b", locked, flags=re.MULTILINE)


def test_the_cuda_image_s_vllm_starts_without_a_compiler_for_flashinfer_s_sampler() -> None:
    assert "\nENV VLLM_USE_FLASHINFER_SAMPLER=0\n" in stages()["cuda-system"]
    assert "flashinfer-python" in locked("cuda")
    assert not {"flashinfer-cubin", "flashinfer-jit-cache"} & locked("cuda").keys()


def test_cudas_headers_are_those_of_torchs_cuda() -> None:
    of_image = locked("cuda")
    headers = ("nvidia-cuda-crt", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
    assert {of_image[name].rpartition(".")[0] for name in headers} == {"13.0"}
    assert locked("cuda-check") == dict.fromkeys(("nvidia-cuda-nvcc", "nvidia-nvvm"), "13.0.88")


def test_deepspeeds_ops_are_built_for_gpus_though_the_build_has_none() -> None:
    """Otherwise DeepSpeed takes the CPU for its accelerator, and on a GPU it ignores those ops."""
    built = cuda_check.variables(cuda_check.Environment("cuda", "python3.12"))
    wanted = {"DS_ACCELERATOR": "cuda", "DS_BUILD_FUSED_ADAM": "1", "DS_BUILD_UTILS": "1"}
    assert wanted.items() <= built.items()
    assert "DS_ACCELERATOR" not in stages()["image"] + stages()["cuda-venv"]


def test_flash_attn_is_left_out_if_that_is_asked_for() -> None:
    """And what is built in minutes comes before, so that it is not built again for flash-attn."""
    assert "\nARG WITH_FLASH_ATTN=1\n" in DOCKERFILE.read_text().partition("FROM")[0]
    before, asked, after = stages()["cuda-build"].partition("\nARG WITH_FLASH_ATTN\n")
    assert asked
    assert "-r /requirements/cuda-build.lock\n" in before
    assert 'if [ "$WITH_FLASH_ATTN" = 0 ]; then rm /requirements/flash-attn.lock;' in after
    assert locked("flash-attn").keys() == {"flash-attn"}
    assert "flash-attn" not in locked("cuda-build") | locked("cuda")
    # Nodes compare a digest of the locks, so that an image without flash-attn is told apart.
    assert "COPY --from=cuda-build /requirements /requirements" in stages()["cuda-venv"]
    assert "find . /requirements" in stages()["source"]


def test_verl_is_built_for_its_flavour_alone_and_the_roll_call_tells_it_apart() -> None:
    assert bases()["cuda-verl-venv"] == "cuda-venv"
    assert [name for name, body in stages().items() if "verl" in name or "verl" in body] == [
        *("cuda-verl-build", "cuda-verl-venv")
    ]
    # Nodes compare a digest of the locks.
    assert "COPY --from=cuda-verl-build /requirements /requirements" in stages()["cuda-verl-venv"]
    assert "COPY requirements/verl.lock" in stages()["cuda-verl-build"]


def test_the_image_s_user_is_a_number_other_than_root_s() -> None:
    """Kubernetes' runAsNonRoot takes no name."""
    (user,) = re.findall(r"^ARG RUN_AS=(\d+):\d+$", DOCKERFILE.read_text(), re.MULTILINE)
    assert int(user) > 0
    assert "\nUSER ${RUN_AS}\n" in stages()["image"]


@pytest.mark.parametrize("path", ["docs/extend-the-image.md", OTHER_RAY])
def test_what_installs_packages_on_top_of_the_image_is_root_and_then_no_longer(path: str) -> None:
    blocks = re.findall(
        r"^FROM (?:localhost/)?rollcall.+?(?=^```|\Z)", (ROOT / path).read_text(), re.M | re.S
    )
    for block in blocks:
        instructions = re.findall(r"^(USER|RUN) ?(\S*)", block, re.MULTILINE)
        assert [name for name, _ in instructions] == ["USER", "RUN", "USER"]
        assert [user for name, user in instructions if name == "USER"] == ["0", "1000:1000"]
    assert blocks


def bases() -> dict[str, str]:
    """Stage → what it stands on."""
    pairs = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    return {name: base for base, name in pairs}


def locked(name: str) -> dict[str, str]:
    """The versions of a lock."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE))


def test_verl_has_the_image_s_ray_and_the_versions_that_its_release_names() -> None:
    verl, cuda, oracles = locked("verl"), locked("cuda"), locked("oracles")
    assert (verl["ray"], verl["verl"]) == (cuda["ray"], oracles["verl"])
    metadata = (ROOT / f".oracles/verl-{verl['verl']}.dist-info/METADATA").read_text()
    named = dict(re.findall(r"^Requires-Dist: (\w+)==(\S+); extra == \"vllm\"", metadata, re.M))
    assert set(named) > {"torch", "vllm", "transformers"}
    assert {name: verl[name] for name in named} == named
    built = locked("verl-build")
    assert built["flash-attn"] == locked("flash-attn")["flash-attn"]
    wanted = re.findall(r"^Requires-Dist: flash-attn==(\S+);", metadata, flags=re.MULTILINE)
    assert {built["flash-attn"]} == set(wanted)


def test_the_page_on_extending_the_image_names_the_locked_versions() -> None:
    page = " ".join((ROOT / "docs" / "extend-the-image.md").read_text().split())
    verl, main = locked("verl"), locked("cuda")
    assert f"verl {verl['verl']} in `/opt/verl`" in page
    named = f"torch {verl['torch']}, vLLM {verl['vllm']} and transformers {verl['transformers']}"
    assert named in page
    assert f'"ray[default]=={main["ray"]}"' in page
    assert f"| image | TRL {main['trl']} | OpenRLHF {main['openrlhf']} |" in page
    assert locked("rocm")["openrlhf"] == main["openrlhf"]
    assert locked("cpu")["trl"] == locked("rocm")["trl"] == main["trl"]
    deepspeed = locked("cuda-build")["deepspeed"]
    assert f"Rollcall pins DeepSpeed {deepspeed}, and OpenRLHF asks for" in page


def test_the_build_context_has_what_the_dockerfile_copies_and_no_tests() -> None:
    allowed = (ROOT / ".dockerignore").read_text().split()
    assert allowed[0] == "*"
    text = DOCKERFILE.read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.MULTILINE)
    for path in {word.split("/")[0] for line in copied for word in line.split()}:
        assert f"!{path}" in allowed or f"!{path}/" in allowed
    assert not any("tests" in line for line in allowed)
