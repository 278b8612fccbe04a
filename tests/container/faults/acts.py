"""What is done to the nodes of a stage: the verbs of the fault table."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.manifest import MANIFEST
from contract.progress import Progress
from contract.run_dir import write_atomically
from entrypoint.job import job_log
from tests.container.faults.reward import Mood
from tests.container.faults.stage import BOOT_SECONDS, Stage, lives
from tests.support.node_cluster import HEAD

Act = Callable[[Stage], object]

FIRST, SECOND = 1, 2
PRINTED = 200 << 20
"""Bytes."""
KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def send(role: str, number: signal.Signals) -> Act:
    return lambda stage: stage.send(role, number)


def kill_node(number: int) -> Act:
    return lambda stage: stage.kill(number)


def start_node(number: int) -> Act:
    return lambda stage: stage.start(number)


ALL = start_node(HEAD), start_node(FIRST), start_node(SECOND)


def both(*acts: Act) -> Act:
    def act(stage: Stage) -> None:
        for one in acts:
            one(stage)

    return act


def is_in_mood(mood: Mood) -> Act:
    def act(stage: Stage) -> None:
        stage.reward.mood = mood

    return act


def entrypoint_dies(number: int) -> Act:
    """The node's process 1 alone, as where no container ends with it."""

    def act(stage: Stage) -> None:
        stage.send(f"entrypoint-{number}", KILL)
        stage.nodes[number].wait(10)

    return act


def spoilt(spoil: Callable[[Path], None]) -> Act:
    """The newest checkpoint is, and then the driver is killed."""

    def act(stage: Stage) -> None:
        stage.event("checkpoint", within=60, after=len(stage.events("checkpoint")) + 1)
        newest = stage.checkpoints()[0]
        stage.send("driver", STOP)  # or it writes the next one meanwhile
        spoil(newest)
        stage.damaged(newest)
        stage.send("driver", KILL)

    return act


def copied(stage: Stage) -> None:
    """A copy of the newest checkpoint has a later name, and the driver is killed."""
    _copy(stage, lambda step: {})


def strange(stage: Stage) -> None:
    """A copy of the newest checkpoint says that it is of another run, and of its later step."""
    _copy(stage, lambda step: {"run": "another", "step": step})


def _copy(stage: Stage, says: Callable[[int], dict[str, object]]) -> None:
    stage.event("checkpoint", within=60, after=len(stage.events("checkpoint")) + 1)
    newest = stage.checkpoints()[0]
    stage.send("driver", STOP)
    step = int(newest.name.rpartition("_")[2]) + 90_000
    copy = newest.with_name(f"global_step_{step}")
    shutil.copytree(newest, copy)
    row = json.loads((copy / MANIFEST).read_text()) | says(step)
    (copy / MANIFEST).write_text(json.dumps(row))
    stage.damaged(copy)
    until_the_driver_starts(stage)


def copies_go(stage: Stage) -> None:
    """Once the attempt that finds them has made a step."""
    attempts = len(stage.events("attempt")) - 1
    stage.resumes(attempts, within=60)
    for copy in stage.run.checkpoints.glob("global_step_9????"):
        shutil.rmtree(copy)


def prints_much(stage: Stage) -> None:
    """The driver's output grows at once, and the driver is killed."""
    submission = stage.events("attempt")[-1]["details"]["submission_id"]
    output = job_log.source(stage.ray_dir(HEAD), submission)
    assert output is not None
    with output.open("ab") as file:
        for _ in range(PRINTED >> 20):
            file.write((b"x" * 1023 + b"\n") * 1024)
    until_the_driver_starts(stage)


def logs_go(stage: Stage) -> None:
    """The checker would read them after each later fault."""
    for log in stage.run.logs.glob("attempt-*.log"):
        os.truncate(log, 0)


def truncate(checkpoint: Path) -> None:
    path = checkpoint / "policy.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(checkpoint: Path) -> None:
    path = checkpoint / "critic.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "policy.pt").unlink()


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


def tear_the_manifest(checkpoint: Path) -> None:
    path = checkpoint / MANIFEST
    path.write_text(path.read_text()[:40])


def empty(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def data_goes(stage: Stage) -> None:
    """As where it lies on a mount that is away."""
    stage.data.rename(away(stage.data))


def data_comes_back(stage: Stage) -> None:
    away(stage.data).rename(stage.data)


def away(data: Path) -> Path:
    return data.with_name(f"{data.name}-away")


def loses_session(number: int, *and_then: Act) -> Act:
    """A cleaner of /tmp deletes the files of a node's Ray, which is then started anew."""

    def act(stage: Stage) -> None:
        raylets = stage.of(f"raylet-{number}")
        for session in stage.ray_sessions(number):
            shutil.rmtree(session)
        both(*and_then)(stage)
        stage.until(lambda: not any(map(lives, raylets)), "end of a Ray without files", within=30)

    return act


def is_told_of(number: int, words: str) -> Act:
    """Such a reason for a worker's return."""

    def told(stage: Stage) -> bool:
        name = stage.environment(number)["ROLLCALL_NODE_NAME"]
        events = stage.events("node-over")[-1:]
        return any(e["details"]["node"] == name and words in e["sentence"] for e in events)

    return lambda stage: stage.until(lambda: told(stage), words, within=60)


def token_goes(stage: Stage) -> None:
    stage.run.token.unlink()


def leases_go(stage: Stage) -> None:
    shutil.rmtree(stage.run.leases)


def damages_the_journal(stage: Stage) -> None:
    """With lines that are not UTF-8, not JSON, and JSON of another shape."""
    with stage.run.journal.open("ab") as file:
        file.write(b'\xff\xfe\x00\n{"at": \n5\n{}\n{"epoch": "six", "kind": 7}\n')


def damages_files(stage: Stage) -> None:
    """What the run is, how far it is, and the newest sign of its life."""
    for path in (stage.run.run, stage.run.progress, stage.run.phase):
        path.write_bytes(b"\xff\xfe" + path.read_bytes()[:20])


def progress_runs_ahead(stage: Stage) -> None:
    """As where the file is that of another run: of steps that nothing holds."""
    shown = Progress.read(stage.run.progress)
    assert shown is not None
    far = replace(shown, step=shown.step + 900, checkpoint=shown.step + 900)
    write_atomically(stage.run.progress, json.dumps(far.as_dict()))


def changes_flag(name: str, value: str) -> Act:
    return lambda stage: stage.change_flag(name, value)


def is_recorded(kind: str, words: str) -> Act:
    """In the sentence of the newest event of its kind."""

    def recorded(stage: Stage) -> bool:
        return any(words in event["sentence"] for event in stage.events(kind)[-1:])

    return lambda stage: stage.until(lambda: recorded(stage), words, within=60)


def is_said(number: int, words: str) -> Act:
    """On the node's console."""
    return lambda stage: stage.until_said(number, words, within=60)


def comes_with_a_copy(number: int) -> Act:
    """Of the run directory: the head turns such a node away, before it has a part in the run."""

    def act(stage: Stage) -> None:
        copy = stage.layout.root / "copy"
        with suppress(shutil.Error):  # files that end while it is made
            shutil.copytree(stage.run.root, copy)
        stage.differs[number] = {"ROLLCALL_RUN_DIR": str(copy)}
        stage.start(number)
        assert stage.nodes[number].wait(60) == ExitCode.UNFIT, stage.consoles()
        assert "mount one shared storage" in stage.said(number), stage.consoles()
        del stage.differs[number]
        shutil.rmtree(copy)

    return act


def comes_to_a_taken_port(number: int) -> Act:
    """Another program has one of the node's ports, for a while."""

    def act(stage: Stage) -> None:
        first = int(stage.environment(number)["ROLLCALL_WORKER_PORTS"].partition("-")[0])
        with socket.create_server(("", first)):
            stage.start(number)
            assert stage.nodes[number].wait(60) == ExitCode.RETRY, stage.consoles()
        assert f"host.ports: {first}: " in stage.said(number), stage.consoles()

    return act


def ends_for_other_prompts(stage: Stage) -> None:
    """All are started with another first prompt: the head ends at once, and says why."""
    prompts = stage.data / "train.jsonl"
    before = prompts.read_bytes()
    prompts.write_bytes(before.replace(b"+", b"-", 1))
    stage.start(*stage.nodes)
    assert set(stage.exit_codes(within=BOOT_SECONDS).values()) == {ExitCode.USAGE}
    assert "belongs to other prompts than" in stage.said(HEAD), stage.consoles()
    prompts.write_bytes(before)


def ends_for_other_weights(stage: Stage) -> None:
    """All are started with a model of the same shape and other weights: the head says why."""
    (weights,) = (stage.data / "model").glob("*.safetensors")
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    stage.start(*stage.nodes)
    assert set(stage.exit_codes(within=BOOT_SECONDS).values()) == {ExitCode.USAGE}
    assert "has other weights than the run was begun with" in stage.said(HEAD), stage.consoles()
    weights.write_bytes(before)


def dies_while_saving(stage: Stage) -> None:
    """The driver is killed as soon as a checkpoint has begun that is not confirmed."""
    confirmed = set(stage.run.checkpoints.glob("global_step_*"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in stage.run.checkpoints.glob("global_step_*"):
            if path not in confirmed and not (path / MANIFEST).exists():
                return stage.send("driver", KILL)
            confirmed.add(path)
        time.sleep(0.0005)
    raise AssertionError("no checkpoint was begun")


def dies_again_while_it_starts(stage: Stage) -> None:
    attempts = len(stage.events("attempt"))
    stage.send("driver", KILL)
    stage.event("attempt", within=60, after=attempts)
    stage.until(lambda: bool(stage.of("driver")), "driver", within=60)
    time.sleep(1.0)
    stage.send("driver", KILL)


def worker_dies_while_the_driver_starts(stage: Stage) -> None:
    attempts = len(stage.events("attempt"))
    stage.send("driver", KILL)
    stage.event("attempt", within=60, after=attempts)
    stage.kill(SECOND)


def ends_and_saves(stage: Stage) -> None:
    """Every node that lives ends with 143, within the grace period, and leaves nothing."""
    living = [number for number, node in stage.nodes.items() if node.running]
    codes = stage.exit_codes(within=40)
    assert {codes[number] for number in living} == {143}, stage.consoles()
    assert stage.left() == []


def is_told_to_stop(wait_for: Act) -> Act:
    def act(stage: Stage) -> None:
        wait_for(stage)
        stage.terminate(HEAD)
        ends_and_saves(stage)

    return act


def until_the_driver_starts(stage: Stage) -> None:
    attempts = len(stage.events("attempt"))
    stage.send("driver", KILL)
    stage.event("attempt", within=60, after=attempts)


def until_the_failure(stage: Stage) -> None:
    failures = len(stage.events("failure"))
    stage.send("driver", KILL)
    stage.event("failure", within=60, after=failures)


def until_a_checkpoint(stage: Stage) -> None:
    known = set(stage.run.checkpoints.glob("global_step_*"))
    stage.until(
        lambda: bool(set(stage.run.checkpoints.glob("global_step_*")) - known),
        "checkpoint begun",
        within=60,
    )


def until_the_roll_call(stage: Stage) -> None:
    """A worker is missing, and the head waits for it."""
    failures = len(stage.events("failure"))
    stage.kill(SECOND)
    stage.send("driver", KILL)  # or the job does without
    stage.event("failure", within=60, after=failures)
    time.sleep(2.0)


def whenever(stage: Stage) -> None:
    """At no moment in particular."""


def told_by_file(number: int) -> Act:
    return lambda stage: stage.preempt_file(number).touch()


def leaves(number: int, tell: Act) -> Act:
    def act(stage: Stage) -> None:
        # One that is still joining, after the fault before, would just go.
        stage.until(stage.is_whole, "whole roll", within=BOOT_SECONDS)
        tell(stage)
        assert stage.nodes[number].wait(40) == 143, stage.consoles()

    return act


def all_leave(tell: Act) -> Act:
    return both(tell, ends_and_saves)
