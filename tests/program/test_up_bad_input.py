"""Bad input, as a user meets it: the whole program, its exit code, one clear message, no start.

A process is started of each kind of refusal; the other rows of a kind run in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest

from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.__main__ import main
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.commands import doctor
from entrypoint.config.settings import Settings
from entrypoint.net import dns
from entrypoint.preflight.check import Report
from entrypoint.processes.process import find_marked
from entrypoint.run.lease import Lease
from tests.support.control import control_server
from tests.support.model_files import write_files
from tests.support.ports import BLOCK_PORTS

SECRET = "9f86d081884c7d659a2feaa0c55ad015"
OTHER_SECRET = "60303ae22b998861bce3b28f33eec1be"
WORKER = {"RAY_WORKER": "1"}
NO_PREFLIGHT = {"ROLLCALL_PREFLIGHT": "off"}
RAY = Path(f"/tmp/rollcall-unlucky-{os.getpid()}")
"""Short, since Ray puts sockets below it; never made, as no node here gets so far."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that will not start."""

    root: Path
    ports: int

    @property
    def run(self) -> RunFiles:
        return RunFiles(self.root / "run")

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return kept | {
            "ROLLCALL_RUN_DIR": str(self.run.root),
            "ROLLCALL_NODE_NAME": "unlucky",
            "ROLLCALL_RAY_TEMP_DIR": str(RAY),
            "ROLLCALL_RAY_PORT": str(self.ports),
            "ROLLCALL_DASHBOARD_PORT": str(self.ports + 1),
            "ROLLCALL_CONTROL_PORT": str(self.ports + 2),
            "ROLLCALL_WORKER_PORTS": f"{self.ports + 10}-{self.ports + BLOCK_PORTS - 1}",
        }

    def up(
        self, environ: dict[str, str], *job: str, through: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*through, sys.executable, "-m", "entrypoint", *job],
            env=self.environment | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    def judged(self, environ: dict[str, str], *job: str) -> subprocess.CompletedProcess[str]:
        """What `up` gives, of the program in this process, which ends before it starts anything."""

        def goes_on(_: object) -> NoReturn:
            raise AssertionError("the program goes on with what it should refuse")

        given, said = self.environment | environ, io.StringIO()
        with (
            mock.patch.dict(os.environ, given, clear=True),
            mock.patch.object(sys, "argv", ["rollcall", *job]),
            mock.patch.object(console, "set_up", goes_on),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            code = main()
        return subprocess.CompletedProcess(job, code, said.getvalue())

    def assert_not_started(self) -> None:
        assert find_marked(f"unlucky@{RAY}") == []
        assert not RAY.exists() or not any(RAY.iterdir())
        if self.run.root.is_dir():
            assert "attempt" not in [event["kind"] for event in read_events(self.run.journal)]


@pytest.fixture
def node(tmp_path: Path, port_block: int) -> Iterator[Node]:
    (tmp_path / "run").mkdir()
    node = Node(tmp_path, port_block)
    yield node
    node.assert_not_started()


def message(done: subprocess.CompletedProcess[str], code: int, word: str) -> str:
    """The one line that has `word`, of a program that ended with `code`."""
    assert done.returncode == code, done.stdout
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if word in line]
    assert len(lines) == 1, done.stdout
    return lines[0]


def only_message(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return message(done, code, "")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            WORKER,
            ["ROLLCALL_HEAD_ADDRESS is not set", "(RAY_WORKER=1)", "set ROLLCALL_HEAD_ADDRESS"],
        ),
        ({"EXPECTED_WORKERS": "two"}, ["EXPECTED_WORKERS='two'", "whole number", "give"]),
        ({"EXPECTED_WORKERS": "-1"}, ["EXPECTED_WORKERS='-1'", "give"]),
        ({"RAY_WORKER": "maybe"}, ["RAY_WORKER='maybe'", "give 1", "or 0"]),
        (
            {"WANDB_API_KEY": SECRET, "WANDB_API_KEY_FILE": "/a/file"},
            ["WANDB_API_KEY_FILE", "is set beside WANDB_API_KEY", "give one of the two"],
        ),
        ({"ROLLCALL_WROKERS": "2"}, ["ROLLCALL_WROKERS", "is not a setting", "ROLLCALL_"]),
        ({"ROLLCALL_TOKEN_FILE": "/no/such/file"}, ["ROLLCALL_TOKEN_FILE", "cannot be read"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_named_with_its_value_and_the_remedy(
    node: Node, environ: dict[str, str], said: list[str]
) -> None:
    line = only_message(node.judged(environ), 64)
    for words in said:
        assert words in line
    assert SECRET not in line


COMMAND = {"ROLLCALL_RECIPE": "command", "EXPECTED_WORKERS": "0"} | NO_PREFLIGHT


@pytest.mark.parametrize(
    ("environ", "job", "said"),
    [
        ({}, ["sttaus"], ["sttaus is neither a command nor", "did you mean status?"]),
        ({}, [], ["ROLLCALL_JOB is not set", "give the command"]),
        ({}, ["echo", "a", "|", "tee", "log"], ["shell syntax |", "bash -c"]),
        ({"ROLLCALL_JOB": "echo a 2>&1 | tee log"}, [], ["ROLLCALL_JOB=", "2>&1", "bash -c"]),
    ],
)
def test_a_command_that_no_one_can_mean_does_not_become_the_job(
    node: Node, environ: dict[str, str], job: list[str], said: list[str]
) -> None:
    line = only_message(node.judged(COMMAND | environ, *job), 64)
    for words in said:
        assert words in line


def test_commands_that_read_need_no_job(node: Node) -> None:
    given = COMMAND | {"ROLLCALL_TOKEN": SECRET}
    for command, code in [("status", 69), ("stop", 69), ("logs", 69)]:
        assert "no " in only_message(node.judged(given, command), code)
    done = node.up(given, "doctor")
    assert done.returncode in (0, 76)
    assert "PASS versions.ray" in done.stdout
    assert "ROLLCALL_JOB" not in done.stdout


OF_ANOTHER_PROGRAM = {"ROLLCALL_STEP_PATTERN": r"step (?P<step>\d+)", "ROLLCALL_TOKEN": SECRET}
"""The environment in which `rollcall up python job.py` trains: the words tell the recipe."""
FAILS = "set -u; python train.py $DATA"
"""Ends at a variable that is not set."""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("status",), 69),
        (("wait",), 69),
        (("events",), 69),
        (("logs",), 69),
        (("list",), 69),
        (("open",), 69),
        (("stop",), 69),
    ],
    ids=str,
)
def test_the_jobs_settings_refuse_no_question(
    node: Node, command: tuple[str, ...], code: int
) -> None:
    given = OF_ANOTHER_PROGRAM | {"ROLLCALL_HEAD_TIMEOUT": "1s"}
    done = node.judged(given, *command)
    assert (done.returncode, "takes none" in done.stdout) == (code, False), done.stdout


def test_doctor_checks_for_the_program_of_the_environment_and_leaves_its_settings_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def checks(_: object, settings: Settings, **__: object) -> Report:
        asked.append(settings.recipe)
        return Report(settings.preflight)

    monkeypatch.setattr(doctor, "run_checks", checks)
    done = node.judged(OF_ANOTHER_PROGRAM, "doctor")
    assert done.returncode == 0, done.stdout
    said = "not checked, as doctor has no job: ROLLCALL_STEP_PATTERN (`rollcall plan`)"
    assert said in done.stdout.splitlines()
    assert "not checked" not in node.judged({}, "doctor").stdout
    node.judged({"ROLLCALL_JOB": "python job.py"}, "doctor")
    assert asked == ["command", "builtin", "command"], "the builtin trainer needs more than others"


@pytest.mark.parametrize("words", [(), ("bash", "-c", FAILS)], ids=["none", "a script that fails"])
def test_a_worker_with_the_heads_environment_starts(node: Node, words: tuple[str, ...]) -> None:
    given = OF_ANOTHER_PROGRAM | WORKER | {"ROLLCALL_HEAD_ADDRESS": "127.0.0.1"}
    with pytest.raises(AssertionError, match="goes on"):
        node.judged(given, "up", *words)
    assert node.judged(OF_ANOTHER_PROGRAM, "up", *words).returncode == 64, "a head needs the job"


def test_all_wrong_settings_are_named_at_once(node: Node) -> None:
    done = node.up({"EXPECTED_WORKERS": "two", "RAY_WORKER": "maybe", "DEBUG_RAY": "often"})
    assert done.returncode == 64
    named = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert named == {"EXPECTED_WORKERS", "RAY_WORKER", "DEBUG_RAY"}


ELSEWHERE = "203.0.113.7"
"""An address for documentation."""


@pytest.mark.parametrize(
    "given", [{"ROLLCALL_HEAD_ADDRESS": ELSEWHERE}, {"HEAD_POD_ID": "abc123"}], ids=str
)
@pytest.mark.parametrize("command", [[], ["doctor"]], ids=str)
def test_a_node_whose_head_is_another_machine_and_that_nobody_calls_a_worker_is_no_second_head(
    node: Node, given: dict[str, str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "addresses", lambda _: [ELSEWHERE])
    line = only_message(node.judged(NO_PREFLIGHT | given, *command), 64)
    (named,) = given
    for words in (named, "names another machine", "set RAY_WORKER=1", "RAY_WORKER=0"):
        assert words in line
    assert not node.run.unfit.exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ROLLCALL_BIND": ELSEWHERE}, "is not an address of this machine"),
        ({"ROLLCALL_BIND": "2001:db8::7"}, "is not an address of this machine"),
        ({"ROLLCALL_BIND": "no-such-host.invalid"}, "has no address"),
        ({"ROLLCALL_BIND": "127.0.0.1", "EXPECTED_WORKERS": "2"}, "this machine alone"),
        (
            {"ROLLCALL_BIND": "127.0.0.1", "ROLLCALL_HEAD_ADDRESS": "127.0.0.2"},
            "is another address than ROLLCALL_HEAD_ADDRESS=127.0.0.2, where workers look",
        ),
    ],
    ids=str,
)
def test_a_head_listens_at_no_address_where_nobody_finds_it(
    node: Node, given: dict[str, str], says: str
) -> None:
    line = only_message(node.judged(COMMAND | {"RAY_WORKER": "0"} | given, "true"), 64)
    assert line.startswith(f"ROLLCALL_BIND='{given['ROLLCALL_BIND']}' ")
    assert says in line


def test_a_name_with_several_addresses_is_none_to_listen_at(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "addresses", lambda _: ["127.0.0.1", "::1"])
    given = COMMAND | {"RAY_WORKER": "0", "ROLLCALL_BIND": "both"}
    line = only_message(node.judged(given, "true"), 64)
    assert "is a name with several addresses (127.0.0.1, ::1): give one of them" in line


def test_a_head_id_that_does_not_resolve_is_given_up_on_in_time(node: Node) -> None:
    given = WORKER | NO_PREFLIGHT | {"HEAD_POD_ID": "nosuch", "ROLLCALL_TOKEN": SECRET}
    done = node.up(given | {"ROLLCALL_HEAD_TIMEOUT": "1s"})
    line = message(done, 69, "nosuch.runpod.internal does not resolve")
    assert "not there after 1 s" in line
    assert "check HEAD_POD_ID" in line
    assert SECRET not in done.stdout


def test_a_head_that_does_not_answer_is_given_up_on_in_time(node: Node) -> None:
    given = WORKER | NO_PREFLIGHT | {"ROLLCALL_HEAD_ADDRESS": "127.0.0.1", "ROLLCALL_TOKEN": SECRET}
    done = node.up(given | {"ROLLCALL_HEAD_TIMEOUT": "1s"})
    line = message(done, 69, "Connection refused")
    assert "ROLLCALL_HEAD_TIMEOUT sets this limit: check ROLLCALL_HEAD_ADDRESS" in line


def test_a_token_that_never_comes_names_the_remedy(node: Node) -> None:
    given = WORKER | NO_PREFLIGHT | {"HEAD_POD_ID": "abc123", "ROLLCALL_HEAD_TIMEOUT": "1s"}
    line = message(node.up(given), 69, "not there after 1 s")
    assert "share ROLLCALL_RUN_DIR" in line
    assert "ROLLCALL_HEAD_TIMEOUT" in line


@contextlib.contextmanager
def control(node: Node, me: NodeInfo) -> Iterator[int]:
    """A head's control port, without the rest of the head."""
    port = int(node.environment["ROLLCALL_CONTROL_PORT"])
    with control_server(node.run.root, port, SECRET, NodeRegistry(me, 1, "first")):
        yield port


def worker_of(port: int) -> dict[str, str]:
    head = {"ROLLCALL_HEAD_ADDRESS": "127.0.0.1", "ROLLCALL_CONTROL_PORT": str(port)}
    return WORKER | NO_PREFLIGHT | head


def test_a_wrong_token_is_not_waited_with(node: Node) -> None:
    with control(node, me=NodeInfo(node="head", address="127.0.0.1", versions={})) as port:
        done = node.up(worker_of(port) | {"ROLLCALL_TOKEN": OTHER_SECRET})
    line = message(done, 77, "does not know this node's token")
    assert "set ROLLCALL_TOKEN to the head's token, or share its run directory" in line
    assert SECRET not in done.stdout
    assert OTHER_SECRET not in done.stdout


def test_a_node_from_another_image_is_refused_with_both_versions(node: Node) -> None:
    head = NodeInfo(node="head", address="127.0.0.1", versions={"image": "sha256:aaaa"})
    with control(node, me=head) as port:
        given = {"ROLLCALL_TOKEN": SECRET, "ROLLCALL_IMAGE": "sha256:bbbb"}
        line = message(node.up(worker_of(port) | given), 76, "the head refuses this node")
    assert "image sha256:bbbb here, sha256:aaaa on the head; use one image everywhere" in line


def test_a_missing_run_directory_is_not_made(node: Node) -> None:
    """Nothing is mounted there: the run would be on the container's own disk."""
    missing = {"ROLLCALL_RUN_DIR": "/not-mounted/run"}
    line = message(node.up(missing, *job(node)), 73, "FAIL host.run_dir")
    assert "does not exist" in line
    assert "set ROLLCALL_RUN_DIR" in line
    assert not Path("/not-mounted").exists()


def test_a_file_in_the_run_directorys_place_is_refused(node: Node) -> None:
    node.run.root.rmdir()
    node.run.root.touch()
    assert "is not a directory" in message(node.up({}, *job(node)), 73, "FAIL host.run_dir")


def test_a_read_only_run_directory_is_refused(node: Node) -> None:
    with read_only(node.run.root) as through:
        done = node.up({}, *job(node), through=through)
    line = message(done, 73, "FAIL host.run_dir")
    assert "cannot be written" in line
    assert "set ROLLCALL_RUN_DIR" in line


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[tuple[str, ...]]:
    """Make `directory` read-only; yield the words before a command that is to see it so.

    Modes do not stop root, hence an empty read-only file system there, in a mount namespace.
    """
    if os.geteuid() != 0:
        directory.chmod(0o555)
        yield ()
        directory.chmod(0o755)
        return
    mount = f'mount -t tmpfs -o ro none "{directory}" && exec "$@"'
    through = ("unshare", "--mount", "sh", "-c", mount, "sh")
    if subprocess.run([*through, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    yield through


def test_a_run_directory_that_a_living_head_holds_is_refused(node: Node) -> None:
    with Lease(node.run.leases):
        there = set(node.run.root.rglob("*"))
        done = node.up(NO_PREFLIGHT, *job(node))
        assert set(node.run.root.rglob("*")) == there
    line = message(done, 73, "is held by a living head")
    assert "a worker of that head needs RAY_WORKER=1" in line
    assert str(node.run.root) in line
    assert "stop that one first, or give this one another ROLLCALL_RUN_DIR" in line


def test_a_taken_port_is_named_with_its_variable(node: Node) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = node.up({"ROLLCALL_DASHBOARD_PORT": port}, *job(node))
    line = message(done, 75, "FAIL host.ports")
    assert f"{port}: Address already in use" in line
    assert "set ROLLCALL_DASHBOARD_PORT" in line


def test_a_taken_control_port_is_found_without_the_preflight_too(node: Node) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        environ = NO_PREFLIGHT | {"ROLLCALL_CONTROL_PORT": port}
        done = node.up(environ, *job(node))
        with_wandb = node.up(environ, *job(node, "--use_wandb", "yes"))
    line = message(done, 75, f"ROLLCALL_CONTROL_PORT={port} cannot be listened on")
    assert "Address already in use" in line
    assert "WANDB" not in done.stdout
    assert "WANDB_API_KEY is not set" in message(with_wandb, 75, "WANDB")


def job(node: Node, *more: str, prompts: str = '{"prompt": "1+1=", "answer": "2"}\n') -> list[str]:
    """Flags of a job that could run, but for what `prompts` and `more` make of it."""
    data, model = node.root / "train.jsonl", write_files(node.root / "model")
    data.write_text(prompts)
    own_data = () if "--prompt_data" in more else ("--prompt_data", str(data))
    return [
        *("--pretrain", str(model), *own_data, "--remote_rm_url", "arithmetic"),
        *("--input_key", "prompt", "--label_key", "answer", *more),
    ]


def test_a_missing_prompts_file_is_named(node: Node) -> None:
    arguments = job(node)
    (node.root / "train.jsonl").unlink()
    line = only_message(node.up({}, *arguments), 64)
    assert line.startswith("--prompt_data: no such file")
    assert str(node.root / "train.jsonl") in line


@pytest.mark.parametrize("flag", ["--prompt_data", "--eval_dataset"])
def test_an_empty_prompts_file_is_named(node: Node, flag: str) -> None:
    empty = node.root / "empty.jsonl"
    empty.touch()
    line = only_message(node.judged({}, *job(node, flag, str(empty))), 64)
    assert line.startswith(f"{flag}: {empty}: holds no prompts")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("not json", "not JSON: Expecting value at column 1"),
        ('{"prompt": "2+2=", "anwser": "4"}', "the key 'answer' is missing"),
        ('{"prompt": 7, "answer": "4"}', "'prompt' holds 7, where a text or messages are wanted"),
    ],
)
def test_a_broken_prompt_is_named_by_file_and_line(node: Node, broken: str, said: str) -> None:
    whole = json.dumps({"prompt": "1+1=", "answer": "2"})
    arguments = job(node, prompts=f"{whole}\n{whole}\n{broken}\n")
    line = only_message(node.judged({}, *arguments), 64)
    assert f"--prompt_data: {node.root}/train.jsonl:3: {said}" in line
    assert "Every row needs prompt and answer" in line


def test_a_chat_is_no_broken_prompt_where_the_models_template_is_applied(node: Node) -> None:
    chat = json.dumps({"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"})
    with Lease(node.run.leases):  # so that the node ends after its data were read
        words = job(node, "--apply_chat_template", prompts=chat)
        (node.root / "model" / "chat_template.jinja").write_text("{{ messages }}")
        done = node.up(NO_PREFLIGHT, *words)
    assert done.returncode == 73, done.stdout


def test_a_flag_that_the_trainer_does_not_know_is_answered_with_the_nearest(node: Node) -> None:
    line = only_message(node.judged({}, *job(node, "--rolout_batch_size", "64")), 64)
    assert line == "--rolout_batch_size: unknown flag. Did you mean --rollout_batch_size?"


def test_batches_that_do_not_divide_are_named_with_what_would(node: Node) -> None:
    sizes = (
        "--rollout_batch_size",
        "48",
        "--train_batch_size",
        "20",
        "--n_samples_per_prompt",
        "1",
    )
    line = only_message(node.judged({}, *job(node, *sizes, "--micro_train_batch_size", "4")), 64)
    assert line.startswith("--train_batch_size: does not divide the 48 samples of a step")
    assert line.endswith("(given: 20). 16 or 24 would")


def test_a_command_that_the_image_does_not_have_is_named(node: Node) -> None:
    line = only_message(node.up({"ROLLCALL_RECIPE": "command"}, "no-such-program", "--flag"), 64)
    assert "no-such-program" in line
