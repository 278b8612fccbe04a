"""The command that a person copies to start a head again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from contract.redaction import redact
from entrypoint.commands import demo
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node import start_again
from tests.support.platforms import CLUSTERS, Recorded

ID = "0123456789ab"


def settings(**more: str) -> Settings:
    return read_settings({"ROLLCALL_RECIPE": "command", **more}, ["true"])


def test_the_line_starts_the_same_program_with_the_same_words_variables_and_directory(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "it's a job"
    directory.mkdir()
    show = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['ROLLCALL_RUN_DIR'], "
    show += "os.environ['ROLLCALL_START_ID'])"
    program = tmp_path / "rollcall"
    program.write_text(f"#!{sys.executable}\n{show}\n")
    program.chmod(0o755)
    words = [str(program), "up", "--", "python", "train it.py", "--lr=$1", "--hf_token", "abcd"]
    environ = {"ROLLCALL_RUN_DIR": "/runs/my run", "HOME": "/root", "WANDB_API_KEY": "hidden"}
    environ |= {"ROLLCALL_START_ID": "7"}
    line = start_again.typed(words, environ, directory)
    assert "hidden" not in line
    assert "HOME" not in line
    assert redact(line) == line, "it can be copied from the journal, too"
    path = f"{tmp_path}:{os.environ['PATH']}"
    by_name = start_again.typed(words, environ | {"PATH": path}, directory)
    assert by_name == line.replace(str(program), "rollcall")
    same = {"ROLLCALL_START_ID": "7"}
    for command, environment in ((line, same), (by_name, same | {"PATH": path})):
        shell = ["sh", "-c", command]
        said = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=60)
        shown = [*words[1:-1], "SECRET"]
        assert said.stdout == f"{shown} {directory} /runs/my run \n", said.stderr


def test_a_module_is_called_by_its_interpreter() -> None:
    line = start_again.typed(["/opt/x/entrypoint/__main__.py", "up"], {}, Path("/job"))
    assert line == f"cd /job && {sys.executable} -m entrypoint up"


@pytest.mark.parametrize(("engine", "made"), start_again.ENGINES.items())
def test_a_container_is_started_by_the_id_that_names_it_or_run_again(
    tmp_path: Path, engine: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in start_again.APPTAINER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    marker = tmp_path / made.lstrip("/")
    marker.parent.mkdir(exist_ok=True)
    marker.touch()
    cmdline = tmp_path / "proc/1/cmdline"
    cmdline.parent.mkdir(parents=True)
    cmdline.write_text("\0".join(["tini", "--", *sys.argv]) + "\0")
    again = f"{engine} run OPTIONS IMAGE WORDS"
    kept = f"{engine} start --attach {ID}; after {engine} run --rm: {again}"
    assert start_again.command(settings(), ID, tmp_path) == kept
    assert start_again.command(settings(), "gpu-1", tmp_path) == again
    with_id = start_again.command(settings(ROLLCALL_START_ID="7"), ID, tmp_path)
    assert with_id == f"{engine} run OPTIONS --env ROLLCALL_START_ID= IMAGE WORDS"
    cmdline.write_text("sshd: /usr/sbin/sshd -D\0")
    in_background = start_again.command(settings(), ID, tmp_path)
    monkeypatch.undo()
    in_a_shell = start_again.command(settings(), ID, tmp_path)
    typed = start_again.typed(sys.argv, os.environ, Path.cwd())
    assert in_background == in_a_shell == typed


SCRIPT = ["/venv/bin/rollcall", "up", "--", "python", "train it.py"]
MODULE = ["/opt/x/rollcall/__main__.py", *SCRIPT[1:]]


@pytest.mark.parametrize(
    ("words", "own", "parent", "first", "is_containers"),
    [
        (SCRIPT, 1, 0, ["/venv/bin/python", *SCRIPT], True),
        (SCRIPT, 7, 1, ["/sbin/docker-init", "--", "rollcall", *SCRIPT[1:]], True),
        (MODULE, 7, 1, ["tini", "--", "python", "-P", "-m", "rollcall", *SCRIPT[1:]], True),
        (MODULE[:1], 7, 1, ["tini", "--", "python", "-P", "-m", "rollcall"], True),
        (SCRIPT, 7, 1, ["bash", "-c", "date; rollcall up -- python 'train it.py'; true"], True),
        (SCRIPT, 7, 1, ["bash", "-c", "/usr/sbin/sshd -D"], False),
        (SCRIPT, 7, 1, ["tini", "--", "/start.sh"], False),
        (SCRIPT, 7, 1, ["tini", "--", "rollcall", "up", "--wait-for-jobs"], False),
        (SCRIPT[:1], 7, 1, ["sleep", "infinity"], False),
        (SCRIPT, 7, 1, [], False),
        (SCRIPT[:1], 7, 1, [], False),
        (SCRIPT, 9, 7, ["tini", "--", *SCRIPT], False),
    ],
)
def test_a_process_that_is_left_in_the_background_of_a_container_is_not_the_containers(
    words: list[str], own: int, parent: int, first: list[str], is_containers: bool
) -> None:
    assert start_again.is_containers(words, own, parent, first) is is_containers


EXPECTED = {
    "slurm": "sbatch --export ALL,ROLLCALL_RUN_DIR=/runs/a FILE WORDS",
    "dstack": "dstack apply -f FILE",
    "skypilot": "sky jobs launch FILE, or sky launch --cluster CLUSTER FILE",
    "runpod": "runpodctl stop pod head123 && runpodctl start pod head123",
    "leaderworkerset": "kubectl delete pod train-0-0",
    "vertex": "submit the job to vertex again, with ROLLCALL_RUN_DIR=/runs/a",
}
HOSTNAME = "train-0"


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_each_platform_says_how_its_head_is_started_again(
    cluster: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"HOSTNAME": HOSTNAME, **cluster.environs()[cluster.head]}
    head |= {"RUNPOD_POD_ID": "head123"} if "RUNPOD_POD_ID" in head else {}
    for name, value in head.items():
        monkeypatch.setenv(name, value)
    line = start_again.command(settings(**head, ROLLCALL_RUN_DIR="/runs/a"), ID, tmp_path)
    assert "$" not in line
    assert line == EXPECTED.get(cluster.platform, line) != ""
    if "ROLLCALL_START_ID" not in head and cluster.platform in ("slurm", "runpod", "vertex"):
        same = settings(**head, ROLLCALL_RUN_DIR="/runs/a", ROLLCALL_START_ID="7")
        again = start_again.command(same, ID, tmp_path)
        assert again.startswith(line)
        assert again.endswith(" another ROLLCALL_START_ID")


@pytest.mark.parametrize(
    ("pod", "more", "expected"),
    [
        (
            "first-0",
            {"JOB_COMPLETION_INDEX": "0"},
            "kubectl delete job first && helm upgrade first CHART --reuse-values",
        ),
        (
            "my-run-node-0-0",
            {"JOB_COMPLETION_INDEX": "0"},
            "kubectl delete jobset my-run && helm upgrade my-run CHART --reuse-values",
        ),
        ("train-0", {}, "kubectl delete pod train-0"),
        ("train-x2k9z", {}, "kubectl delete job JOB && kubectl apply --filename FILE"),
    ],
)
def test_kubernetes_names_what_has_made_the_pod(
    pod: str, more: Mapping[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTNAME", pod)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": pod, "RAY_WORKER": "0", **more}
    assert start_again.command(settings(**environ), pod) == expected


def test_the_head_of_a_demo_names_the_command_that_starts_all_its_nodes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(demo, "Process", lambda *_, env, **__: started.append(env))
    layout = demo.Layout(tmp_path, 21000)
    options = demo.parser().parse(["--dir", str(tmp_path), "--steps", "12"])
    line = demo.again(layout, options)
    demo._start(layout, 0, [], line)
    (environ,) = started
    assert start_again.command(settings(**environ), ID) == line
