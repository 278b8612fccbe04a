"""A pipeline on a head that stays up: real queue, journal, control port and command, no Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.launch.programs import Program
from contract.options import Fault
from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.cluster.job_queue_protocol import SubmissionError
from entrypoint.commands import cli
from entrypoint.config.pipeline import Stage, keyed, parsed
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.run_context import RunContext
from entrypoint.processes.programs import program
from env.prepare.arithmetic import ALPHABET
from tests.support.job_head import FINISHED, JobHead, fails, finishes, soon, until_stopped
from tests.support.repository import ROOT
from tests.support.tiny_reward_model import write_reward_model

LATER = "{stage.one.run}/made"


def stages(*jobs: str) -> list[Stage]:
    names = ("one", "two", "three")
    return keyed([Stage(name, tuple(job.split())) for name, job in zip(names, jobs, strict=False)])


def saves_and_fails(run: RunContext) -> Outcome:
    (run.files.root / "saved").touch()
    return fails(run)


def finds_what_it_saved(run: RunContext) -> Outcome:
    assert (run.files.root / "saved").exists()
    return finishes(run)


def states(head: JobHead) -> list[str]:
    return [row["state"] for row in head.queue.rows()]


def written(directory: Path, *jobs: str) -> Path:
    """The file of a pipeline with these jobs."""
    rows = [{"name": stage.name, "job": list(stage.words)} for stage in stages(*jobs)]
    path = directory / "pipeline.yaml"
    path.write_text(json.dumps({"stages": rows}))
    return path


def rollcall(where: JobHead, *words: str) -> int:
    return entrypoint._ask(cli.parse(words), where.environment)


def test_stages_run_in_their_order_and_get_the_paths_of_earlier_ones(tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    def sees(run: RunContext) -> Outcome:
        seen.append(tuple(run.settings.job))
        return FINISHED

    with JobHead(tmp_path, true=sees, echo=sees) as head:
        head.queue.submit(["true"], {})
        head.queue.submit_stages(stages("true", "echo {stage.one.model}", f"echo {LATER}"))
        soon(lambda: states(head) == ["finished"] * 4)
    jobs = tmp_path / "jobs"
    assert seen[1:] == [("true",), ("echo", f"{jobs}/job-2/hf"), ("echo", f"{jobs}/job-2/made")]
    assert [row["after"] for row in head.queue.rows()] == ["", "", "job-2", "job-3"]


def test_a_model_that_its_stage_will_not_leave_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    verl = f"{sys.executable} -m verl.trainer.main_ppo data.train_batch_size=8"
    jobs = stages(verl, "echo {stage.one.model} {stage.one.run}", "echo a{stage.one.model}")
    jobs = [replace(jobs[0], runtime_env={"py_executable": sys.executable}), *jobs[1:]]
    head = JobHead(tmp_path)
    with pytest.raises(SubmissionError) as caught:
        head.queue.submit_stages(jobs)
    assert [fault[:65] for fault in caught.value.faults] == [
        "stage two: {stage.one.model} will not be there: in one, its check",
        "stage three: {stage.one.model} will not be there: in one, its che",
    ]
    assert head.queue.rows() == []
    (tmp_path / "jobs/job-1/hf").mkdir(parents=True)  # merged by hand, and submitted again
    assert len(head.queue.submit_stages(jobs)) == 3


def test_what_a_stage_waits_for_depends_on_no_word_of_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an earlier stage may be missing; a value that names its directory is a fault."""
    monkeypatch.setattr(Fault, "__str__", lambda fault: f"otherwise told: {fault.value}")
    sft = "sft --pretrain org/m --dataset"
    head = JobHead(tmp_path)
    with pytest.raises(SubmissionError) as caught:
        head.queue.submit_stages(stages("true", f"{sft} org/d --learning_rate {LATER}"))
    (fault,) = caught.value.faults
    assert fault.startswith("stage two: otherwise told: ")
    assert len(head.queue.submit_stages(stages("true", f"{sft} {LATER}.jsonl"))) == 2


@pytest.mark.parametrize(("how", "verb"), [("failed", "failed"), ("stopped", "been stopped")])
def test_a_stage_that_does_not_finish_ends_those_behind_it_and_no_other_job(
    tmp_path: Path, how: str, verb: str
) -> None:
    with JobHead(tmp_path, sleep=until_stopped if how == "stopped" else fails) as head:
        go_on = threading.Event()

        def waits(run: RunContext) -> Outcome:
            go_on.wait(60)
            return FINISHED

        head.acts["false"] = waits
        head.queue.submit(["false"], {})
        head.queue.submit_stages(stages("sleep 9", "true", "true"))
        head.queue.submit(["true"], {})
        go_on.set()
        if how == "stopped":
            soon(lambda: "job-2" in head.ran)
            head.queue.stop("job-2")
        soon(lambda: states(head)[-1] == "finished")
        assert states(head) == ["finished", how, "stopped", "stopped", "finished"]
        assert head.ran == ["job-1", "job-2", "job-5"]
        for job in ("job-3", "job-4"):
            row = head.queue.row(job)
            assert row is not None
            assert row["exit_code"] == ExitCode.STOPPED
            said = f"it did not begin: job-2 (one), which comes before, has {verb}"
            assert row["sentence"] == said
            assert f"has been stopped: {said}" in head.run.journal.read_text()


def test_the_next_head_goes_on_at_the_stage_that_was_lost(tmp_path: Path) -> None:
    pipeline = stages("true", f"sleep {LATER}", "true")
    with JobHead(tmp_path, sleep=until_stopped) as first:
        first.queue.submit_stages(pipeline)
        soon(lambda: first.ran == ["job-1", "job-2"])
    with JobHead(tmp_path, sleep=finishes) as second:
        again = second.queue.submit_stages(pipeline)
        assert [row["id"] for row in again] == ["job-1", "job-2", "job-3"]
        soon(lambda: second.state("job-3") == "finished")
        assert second.ran == ["job-2", "job-3"]
        assert len(second.queue.rows()) == 3


def test_a_head_that_dies_after_a_stage_failed_does_not_begin_those_behind(
    tmp_path: Path,
) -> None:
    with JobHead(tmp_path, false=fails) as first:
        first.queue.submit_stages(stages("false", "true"))
        soon(lambda: first.state("job-2") == "stopped")
    entry = tmp_path / "jobs" / "job-2" / "job.json"  # as if the head was killed before its end
    before = {"state": "queued", "exit_code": None, "sentence": "", "ended": None}
    entry.write_text(json.dumps(json.loads(entry.read_text()) | before))
    with JobHead(tmp_path) as second:
        soon(lambda: second.state("job-2") == "stopped")
        assert second.ran == []


def test_a_stage_behind_a_job_whose_entry_is_damaged_does_not_begin(tmp_path: Path) -> None:
    with JobHead(tmp_path, sleep=until_stopped) as first:
        first.queue.submit_stages(stages("sleep 9", "true"))
        soon(lambda: first.ran == ["job-1"])
    (tmp_path / "jobs" / "job-1" / "job.json").write_text("{")
    with JobHead(tmp_path) as second:
        lost = "job-1, which comes before, is not in the queue"
        soon(lambda: [lost in row["sentence"] for row in second.queue.rows()] == [True])
        assert second.state("job-2") == "stopped"


def test_a_failed_stage_goes_on_in_its_run_with_those_behind_it_and_not_those_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(written(tmp_path, "true", f"false {LATER}", "true"))
    with JobHead(tmp_path, true=finishes, false=saves_and_fails) as head:
        assert rollcall(head, "pipeline", file) == 70
        said = capsys.readouterr()
        assert said.out == "true was here\n"
        assert "stage two: job-2 (failed, exit code 70): ValueError: broken" in said.err
        assert said.err.splitlines()[-1] == "stage three does not begin"
        head.acts["false"] = finds_what_it_saved
        assert rollcall(head, "pipeline", "--json", file) == 0
        rows = json.loads(capsys.readouterr().out)
        ran = [(row["id"], row["stage"], row["after"]) for row in rows]
        assert ran == [("job-1", "one", ""), ("job-2", "two", "job-1"), ("job-3", "three", "job-2")]
        assert head.ran == ["job-1", "job-2", "job-2", "job-3"]
        assert rollcall(head, "pipeline", "--no-wait", file) == 0
        assert capsys.readouterr().out.split() == ["job-1", "job-2", "job-3"]
        assert rollcall(head, "list") == 0
        listed = capsys.readouterr().out.splitlines()
        assert [line.split()[5] for line in listed] == ["one:", "two:", "three:"]
        assert len(head.queue.rows()) == 3
    kinds = [event["kind"] for event in read_events(tmp_path / "jobs/job-2/journal.jsonl")]
    assert kinds == ["start", "outcome", "submitted-again", "start", "outcome"]


def test_a_stage_that_is_submitted_again_has_its_directory_as_it_is_now(tmp_path: Path) -> None:
    """The client packs it anew, and its key is the same: the fault was in the user's code."""
    (stage,) = stages("false")
    code = {name: {"working_dir": f"https://example.org/{name}.zip"} for name in ("old", "new")}
    with JobHead(tmp_path, false=fails) as head:
        head.queue.submit_stages([replace(stage, runtime_env=code["old"])])
        soon(lambda: states(head) == ["failed"])
        head.acts["false"] = until_stopped
        head.queue.submit_stages([replace(stage, runtime_env=code["new"])])
        soon(lambda: head.ran == ["job-1", "job-1"])
        assert head.queue.settings_of(head.queue._jobs["job-1"]).runtime_env == code["new"]


def test_a_stopped_stage_goes_on_when_the_pipeline_is_submitted_again(tmp_path: Path) -> None:
    pipeline = stages("sleep 9", "true")
    with JobHead(tmp_path, sleep=until_stopped) as head:
        head.queue.submit_stages(pipeline)
        soon(lambda: head.ran == ["job-1"])
        head.queue.stop("job-1")
        soon(lambda: states(head) == ["stopped", "stopped"])
        head.queue.submit_stages(pipeline)
        soon(lambda: head.ran == ["job-1", "job-1"])
        assert states(head) == ["running", "queued"]
        head.queue.stop("job-1")
        soon(lambda: states(head) == ["stopped", "stopped"])


def test_a_stage_that_was_submitted_again_goes_on_with_the_next_head_too(tmp_path: Path) -> None:
    pipeline = stages("false", "true")
    with JobHead(tmp_path, false=fails) as first:
        first.queue.submit_stages(pipeline)
        soon(lambda: states(first) == ["failed", "stopped"])
        first.acts["false"] = until_stopped
        first.queue.submit_stages(pipeline)
        soon(lambda: first.ran == ["job-1", "job-1"])
    with JobHead(tmp_path, false=finishes) as second:
        soon(lambda: states(second) == ["finished", "finished"])
        assert second.ran == ["job-1", "job-2"]


def test_a_failed_stage_with_another_command_has_a_run_of_its_own(tmp_path: Path) -> None:
    with JobHead(tmp_path, false=fails) as head:
        head.queue.submit_stages(stages("true", "false", "true"))
        soon(lambda: states(head) == ["finished", "failed", "stopped"])
        again = head.queue.submit_stages(stages("true", "true changed", "true"))
        assert [row["id"] for row in again] == ["job-1", "job-4", "job-5"]
        soon(lambda: states(head) == ["finished", "failed", "stopped", "finished", "finished"])


def test_a_stage_that_did_not_write_what_the_next_needs_fails_the_next(tmp_path: Path) -> None:
    with JobHead(tmp_path) as head:
        head.queue.submit_stages(stages("true", f"torchrun {LATER}.py", "true"))
        soon(lambda: head.state("job-3") == "stopped")
        row = head.queue.row("job-2")
        assert row is not None
        assert (row["state"], row["exit_code"]) == ("failed", ExitCode.USAGE)
        assert f"{tmp_path}/jobs/job-1/made.py" in row["sentence"]
        assert head.ran == ["job-1"]
        assert head.outcome is None


def test_a_stage_that_left_no_model_is_named_with_what_to_do_if_the_next_needs_the_model(
    tmp_path: Path,
) -> None:
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(SUM)}\n")
    trains = f"rm --pretrain {{stage.one.model}} --dataset {tmp_path}/pairs.jsonl"
    with JobHead(tmp_path) as head:
        head.queue.submit_stages(stages("true", trains))
        soon(lambda: (head.queue.row("job-2") or {})["state"] == "failed")
        row = head.queue.row("job-2")
    assert row is not None
    assert row["sentence"].startswith(
        f"it did not begin: job-1 (one) left no model in {tmp_path}/jobs/job-1/hf. "
    )
    for remedy in ("$ROLLCALL_RUN_DIR/hf", "{stage.one.run}/", "--save_path"):
        assert remedy in row["sentence"]


def test_all_stages_are_checked_before_the_first_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = ("true", "sft --pretrain {stage.one.model} --no_such_flag 1", "no-such-program")
    with JobHead(tmp_path) as head:
        assert rollcall(head, "pipeline", str(written(tmp_path, *jobs))) == 64
        said = capsys.readouterr().err
        assert "stage two: " in said
        assert "no_such_flag" in said
        assert "stage three: no-such-program is not a program" in said
        assert head.queue.rows() == []
        with pytest.raises(SubmissionError, match="names no stage of the file"):
            head.queue.submit_stages(stages("true {stage.x.run}"))
        assert not head.run.jobs.exists()


def test_a_file_with_faults_and_one_that_is_not_there_end_the_command_with_64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "true {stage.two.run}", "true {stage.three.run}")
    with JobHead(tmp_path) as head:
        assert rollcall(head, "pipeline", str(file)) == 64
        said = capsys.readouterr().err
        assert f"{file}: stage one: {{stage.two.run}} names a stage that does not come" in said
        assert f"{file}: stage two: {{stage.three.run}} names no stage of the file" in said
        assert rollcall(head, "pipeline", "/none.yaml") == 64
        assert "/none.yaml: No such file" in capsys.readouterr().err
        file.write_text("stages: [{name: a, job: x, runtime_env: {working_dir: not-there}}]")
        assert rollcall(head, "pipeline", str(file)) == 64
        said = f"stage a: working_dir {tmp_path / 'not-there'} is neither a directory nor"
        assert capsys.readouterr().err.startswith(said)
        assert head.queue.rows() == []


def test_a_stages_directory_lies_beside_the_file_of_the_pipeline_wherever_the_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    (tmp_path / "run").mkdir()
    for directory, name in ((tmp_path, "wrong.py"), (place, "right.py")):
        (directory / "code").mkdir(parents=True)
        (directory / "code" / name).touch()
    (place / "needs.txt").write_text("einops\n")
    row = {"name": "a", "job": "true", "runtime_env": {"working_dir": "code", "pip": "needs.txt"}}
    (place / "pipeline.yaml").write_text(json.dumps({"stages": [row]}))
    with JobHead(tmp_path / "run") as head:
        for typed_in in (tmp_path, place):
            monkeypatch.chdir(typed_in)
            file = os.path.relpath(place / "pipeline.yaml", typed_in)
            assert rollcall(head, "pipeline", file) == 0
        assert len(head.queue.rows()) == 1, "the same stages have the same keys"
        (package,) = head.run.packages.iterdir()
    assert "right.py" in zipfile.ZipFile(package).namelist()


@pytest.mark.parametrize("command", ["submit", "pipeline"])
def test_a_submission_that_is_interrupted_before_the_head_answers_says_where_to_look(
    tmp_path: Path, command: str
) -> None:
    """The head may take it all the same, as one whose storage is slow."""
    slow = tmp_path / "flags.yaml"
    os.mkfifo(slow)
    job = f"--config {slow}"
    words = ["--", *job.split()] if command == "submit" else [str(written(tmp_path, job))]
    with JobHead(tmp_path / "run") as head:
        asks = subprocess.Popen(
            program(Program.ROLLCALL, command, *words),
            env=head.environment,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that starts the tests in the background has SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        with slow.open("w"):  # which waits until the head reads
            asks.send_signal(signal.SIGINT)
            said = asks.communicate(timeout=60)[1]
            slow.unlink()  # a head that reads it again would wait, and with it the tests' end
    assert asks.returncode == 130, said
    assert said.endswith("`rollcall list` shows whether it was submitted\n")


SUM = {"prompt": "1+1=", "answer": "2", "completion": "2", "chosen": "2", "rejected": "3"}
"""A row of every data set of the examples."""
DATA = {
    "pipeline": ("/shared/data", ("answers", "pairs", "prompts")),
    "sums": ("/data", ("warmup", "pairs", "train")),
}
"""Example → the directory and the names of its data."""


@pytest.mark.parametrize("name", DATA)
def test_an_example_has_stages_that_the_head_takes(name: str, tmp_path: Path) -> None:
    place, files = DATA[name]
    for file in files:
        (tmp_path / f"{file}.jsonl").write_text(f"{json.dumps(SUM)}\n" * 4)
    write_reward_model(tmp_path / "model", ALPHABET)
    text = (ROOT / "examples" / f"{name}.yaml").read_text()
    here = text.replace("/shared/model", f"{place}/model").replace(f"{place}/", f"{tmp_path}/")
    with JobHead(tmp_path / "run", sft=finishes, rm=finishes) as head:
        jobs = head.queue.submit_stages(parsed(here))
    assert [job["recipe"] for job in jobs] == ["supervised", "supervised", "builtin"]
    assert RunFiles(tmp_path / "run" / "jobs" / "job-2").exported.as_posix() in jobs[2]["words"]
    with pytest.raises(SubmissionError, match=r"stage ppo: .*reward_pretrian"):
        head.queue.submit_stages(parsed(here.replace("--reward_pretrain", "--reward_pretrian")))
