"""The image on its own: its commands, its health, what is in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from pathlib import Path

import pytest

from contract.manifest import newest_checkpoint
from contract.run_dir import RunFiles
from tests.container.cluster import SHORT, Cluster
from tests.container.dockerfile import stages
from tests.support.podman import HARDENED, IMAGE, Container, inspect, podman, run_once
from tests.support.repository import ROOT

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

ROCM = os.environ.get("TEST_ROCM_IMAGE", "localhost/rollcall:rocm-layers")
"""The ROCm image's layers on the CPU image's base."""


def test_plan_says_what_a_node_would_do_and_does_nothing() -> None:
    worker = ("--env=RAY_WORKER=1", "--env=HEAD_POD_ID=abc123")
    said = run_once("--network=none", *worker, IMAGE, "plan", "--json")
    assert said.returncode == 0
    plan = json.loads(said.stdout)
    assert (plan["role"], plan["head_address"]) == ("worker", "abc123.runpod.internal")
    assert plan["run_dir"] == "/checkpoints"


def test_plan_ends_with_64_where_a_setting_is_wrong() -> None:
    said = run_once("--network=none", "--env=EXPECTED_WORKERS=two", IMAGE, "plan")
    assert said.returncode == 64
    assert "EXPECTED_WORKERS='two'" in said.stdout + said.stderr


def test_doctor_finds_a_node_of_this_image_fit() -> None:
    said = run_once("--shm-size=512m", IMAGE, "doctor", "--json")
    report = json.loads(said.stdout)
    assert said.returncode == 0
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert verdicts["versions.ray"] == verdicts["versions.torch"] == "pass"
    assert verdicts["host.reaper"] == "pass"


def test_any_other_program_is_executed_as_it_is() -> None:
    said = run_once("--network=none", IMAGE, "bash", "-c", "echo $0 $((6 * 7)); exit 3")
    assert (said.stdout, said.returncode) == ("bash 42\n", 3)


def test_a_word_that_is_neither_command_nor_program_ends_with_64() -> None:
    said = run_once("--network=none", IMAGE, "docter")
    assert said.returncode == 64
    assert "did you mean doctor?" in said.stderr


def test_tini_is_process_1_and_hands_on_the_exit_code_of_a_signalled_program() -> None:
    said = run_once("--network=none", IMAGE, "bash", "-c", "cat /proc/1/comm; kill -TERM $$")
    assert (said.stdout, said.returncode) == ("tini\n", 143)


def test_neither_compiler_nor_package_cache_nor_test_is_left_in_the_image() -> None:
    look = (
        "for tool in cc gcc g++ make; do command -v $tool; done;"
        "find /root/.cache /var/lib/apt/lists /build -type f 2>/dev/null;"
        "find /opt/rollcall -name 'test*.py'"
    )
    assert run_once("--network=none", "--user=0", IMAGE, "bash", "-c", look).stdout == ""


@pytest.mark.faults
def test_the_images_of_two_flavours_have_the_same_interface() -> None:
    image, rocm = inspect(IMAGE), inspect(ROCM)
    assert rocm["Healthcheck"] == image["Healthcheck"]
    for item in ("Entrypoint", "StopSignal", "ExposedPorts", "WorkingDir", "Labels"):
        assert rocm["Config"][item] == image["Config"][item], item
    said = run_once("--network=none", ROCM, "rollcall", "plan", "--json")
    assert json.loads(said.stdout)["role"] == "head"


DIGEST = "from entrypoint.config.read import read_settings; print(read_settings({}).image)"


def digest(image: str) -> str:
    """What the nodes of this image compare at the roll call."""
    return run_once("--network=none", image, "python", "-c", DIGEST).stdout.strip()


def built(context: Path) -> str:
    """The digest of the CPU image's source stage, built anew of the tree at `context`."""
    recipe = context / "Dockerfile.source"
    recipe.write_text(f"FROM {IMAGE}\nUSER 0\n{stages()['source']}")
    options = ("--no-cache", "--format=docker", "--isolation=chroot", "--network=host", "--quiet")
    made = podman("build", *options, f"--file={recipe}", context, within=120).stdout.strip()
    try:
        read = ("--entrypoint=cat", made, "/build/entrypoint/config/image.digest")
        return run_once("--network=none", *read).stdout.strip()
    finally:
        podman("rmi", "--force", made)


@pytest.mark.faults
def test_two_builds_of_one_tree_have_one_digest_and_another_tree_has_another(
    tmp_path: Path,
) -> None:
    copied = (ROOT / ".dockerignore").read_text().replace("!", "").replace("/", "").split()[1:-1]
    for name in copied:  # with times of its own, and as a checkout without compiled files
        path, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
        if path.is_dir():
            shutil.copytree(path, tmp_path / name, ignore=ignored, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(path, tmp_path / name)
    first = built(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{16}", first)
    assert first == digest(IMAGE)
    with (tmp_path / "trainer" / "algorithms" / "losses.py").open("a") as source:
        source.write("# another\n")
    assert built(tmp_path) != first


@pytest.mark.faults
def test_the_built_images_compare_their_digests_with_no_word_from_whoever_built_them() -> None:
    ours, rocm = digest(IMAGE), digest(ROCM)
    assert re.fullmatch(r"[0-9a-f]{16}", ours)
    assert re.fullmatch(r"[0-9a-f]{16}", rocm)
    assert ours != rocm  # other locks
    inventory = run_once("--network=none", IMAGE, "env").stdout
    assert "ROLLCALL_IMAGE" not in inventory


def test_memory_that_runs_out_in_a_container_leaves_no_file_in_the_repository() -> None:
    limits = ("--memory=128m", "--memory-swap=128m")
    node = Container.start(f"rollcall-{uuid.uuid4().hex[:8]}", *limits, IMAGE, "sleep", "60")
    try:
        killed = node.execute("python", "-c", "x = bytearray(2**30); print(len(x))")
        assert killed.returncode == 137, killed.stdout + killed.stderr
        time.sleep(1)  # conmon writes the file once it has seen the kill
    finally:
        node.remove()
    assert not Path("oom").exists()


def test_a_user_without_a_name_or_a_home_whose_volumes_are_empty_dirs_trains_to_the_end(
    tmp_path: Path, data: Path
) -> None:
    """As on OpenShift: a large number of the namespace, group 0, and volumes of mode 2777."""
    volumes = tmp_path / "pods" / str(uuid.uuid4()) / "volumes" / "kubernetes.io~empty-dir"
    for name in ("run", "tmp"):
        (volumes / name).mkdir(parents=True)
        (volumes / name).chmod(0o2777)
    node = ("--shm-size=512m", "--env=EXPECTED_WORKERS=0", "--env=ROLLCALL_NUM_CPUS=4")
    user = ("--user=1000680000:0", "--unsetenv=HOME", f"--volume={volumes / 'tmp'}:/tmp")
    mounted = (f"--volume={volumes / 'run'}:/checkpoints", f"--volume={data}:/data:ro")
    job = ("--", *SHORT, "--remote_rm_url", "arithmetic")
    said = run_once(*HARDENED, *node, *user, *mounted, IMAGE, *job, within=200)
    assert said.returncode == 0, said.stdout + said.stderr
    assert newest_checkpoint(RunFiles(volumes / "run").checkpoints) == 10
    assert "host.private" not in said.stdout + said.stderr
    assert {path.lstat().st_uid for path in volumes.rglob("*/*")} == {1000680000}


def test_head_and_worker_are_healthy_and_a_head_whose_control_port_hangs_is_not(
    tmp_path: Path, data: Path
) -> None:
    test = inspect(IMAGE)["Healthcheck"]["Test"]
    assert test[0] == "CMD"
    listen = "import socket, time; s = socket.create_server(('', 8267))"
    listen += "; print(flush=True); time.sleep(60)"
    with Cluster(tmp_path / "cluster", data) as cluster:
        head = cluster.head("--remote_rm_url", "arithmetic", *SHORT, workers=1)
        worker = cluster.worker(1)
        cluster.watch.event("check-in", within=120)
        assert head.execute(*test[1:]).returncode == 0
        assert worker.execute(*test[1:]).returncode == 0
        # In place of the head: something that listens, and never answers.
        began = f'python -c "{listen}" >/tmp/told 2>&1 & until [ -s /tmp/told ]; do sleep 0.1; done'
        hung = worker.execute("sh", "-c", f'{began}; timeout 5 "$@"', *test)
        assert hung.returncode != 0
