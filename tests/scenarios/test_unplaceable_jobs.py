"""A submission whose job the nodes of a waiting head cannot hold: real queue, roll and recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint import __main__ as entrypoint
from entrypoint.cluster.job_queue_protocol import SubmissionError
from entrypoint.commands import cli
from entrypoint.config.pipeline import Stage, keyed
from tests.support.job_head import JobHead

CANNOT = "the nodes cannot hold the job: "
SFT = ("sft", "--pretrain", "org/model", "--dataset", "rows.jsonl")
RM = ("rm", "--dataset", "rows.jsonl", "--prompt_key", "prompt")
PPO = ("--prompt_data", "rows.jsonl", "--input_key", "prompt")
LARGE = ("--actor_num_nodes", "1", "--actor_num_gpus_per_node", "8")
VERL = (sys.executable, "-m", "verl.trainer.main_ppo", "data.train_batch_size=8")
OF_ITS_OWN = {"py_executable": sys.executable}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"prompt": "1+1=", "completion": "2", "chosen": "2", "rejected": "3"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def head(tmp_path: Path) -> JobHead:
    """A head without GPUs, and two workers with 3 each, which are all that it expects."""
    head = JobHead(tmp_path / "run")
    for worker in ("a", "b"):
        head.joins(worker, gpus=3)
    return head


@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        (("torchrun", "--nproc-per-node", "4", "train.py"), "a has 3 GPUs, and the job starts 4"),
        ((*SFT, "--train_batch_size", "32"), "--train_batch_size: is not a multiple of 6 ranks"),
        ((*PPO, "--pretrain", "org/model", "--remote_rm_url", "http://r", *LARGE), "policy"),
        ((*VERL, "trainer.n_gpus_per_node=8"), "verl wants 8 GPUs on each of 1 node"),
    ],
    ids=["torchrun", "supervised", "builtin", "verl"],
)
def test_a_job_that_the_nodes_of_a_complete_roll_cannot_hold_is_refused_when_it_is_submitted(
    head: JobHead, words: tuple[str, ...], lacking: str
) -> None:
    environment = OF_ITS_OWN if words[: len(VERL)] == VERL else {}
    with pytest.raises(SubmissionError) as caught:
        head.queue.submit(words, environment)
    (sentence,) = caught.value.faults
    assert sentence.startswith(CANNOT)
    assert lacking in sentence
    assert head.queue.rows() == []


def test_it_is_taken_while_a_worker_is_missing_because_it_may_fit_later(tmp_path: Path) -> None:
    words = ["torchrun", "--nproc-per-node", "4", "train.py"]
    head = JobHead(tmp_path / "run")
    head.joins("a", gpus=3)
    assert head.queue.submit(words, {})["id"] == "job-1"
    head.joins("b", gpus=3)
    with pytest.raises(SubmissionError, match=CANNOT):
        head.queue.submit(words, {})


STAGES = {
    "sft": (*SFT, "--train_batch_size", "36"),
    "rm": (*RM, "--pretrain", "{stage.sft.model}", "--train_batch_size", "36"),
    "ppo": (*PPO, "--pretrain", "{stage.sft.model}", "--reward_pretrain", "{stage.rm.model}"),
}
WRONG = {"rm": ("--train_batch_size", "32"), "ppo": LARGE}


def pipeline(**more: tuple[str, ...]) -> list[Stage]:
    """The stages with more words, which win."""
    given = {name: (*words, "--", *more.get(name, ())) for name, words in STAGES.items()}
    return keyed([Stage(name, words) for name, words in given.items()])


def test_stages_whose_models_earlier_ones_have_still_to_make_are_refused_before_the_first(
    head: JobHead,
) -> None:
    assert len(head.queue.submit_stages(pipeline())) == 3
    with pytest.raises(SubmissionError) as caught:
        head.queue.submit_stages(pipeline(**WRONG))
    of_rm, of_ppo = caught.value.faults
    assert of_rm.startswith(f"stage rm: {CANNOT}--train_batch_size")
    assert of_ppo.startswith(f"stage ppo: {CANNOT}")
    assert len(head.queue.rows()) == 3


def test_a_launch_that_names_a_file_for_a_number_is_refused_and_is_no_error_of_the_head(
    head: JobHead,
) -> None:
    words = ("torchrun", "--nproc-per-node", "{stage.one.run}/processes", "train.py")
    with pytest.raises(SubmissionError, match="is not a number of processes: give 1, 2 or more"):
        head.queue.submit_stages(keyed([Stage("one", ("true",)), Stage("two", words)]))


def test_the_command_tells_it_and_ends_with_64(
    head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("submit", "--", "torchrun", "--nproc-per-node", "4", "train.py")
    with head:
        assert entrypoint._ask(cli.parse(words), head.environment) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"{CANNOT}a has 3 GPUs, and the job starts 4 processes on each node" in said


def test_only_files_that_are_still_to_be_written_are_no_fault_of_a_later_stage(
    tmp_path: Path,
) -> None:
    """The path of an earlier stage may stand in any word: what else is wrong there is a fault."""
    run, model = "{stage.one.run}", "--pretrain {stage.one.model}"
    rm = f"rm {model} --dataset rows.jsonl"
    ppo = f"{model} --prompt_data {run}/sums.jsonl --remote_rm_url arithmetic"
    wrong = {
        f"{ppo} --actor_learning_rate {run}/lr": "--actor_learning_rate",
        f"{ppo} --rollout_engine {run}/x": "--rollout_engine",
        f"{ppo} --no_such_flag {run}/x": "--no_such_flag",
        f"{rm} --learning_rate {run}/lr": "--learning_rate",
        f"no-such-program {run}/x": "no-such-program",
        f"torchrun --nproc_per_node {run}/x train.py": "--nproc",
    }
    right = (
        ppo,
        f"{ppo} --eval_dataset {run}/made.jsonl",
        ppo.replace("arithmetic", f"{run}/reward.py"),
        rm,
        f"{rm} --eval_dataset {run}/made.jsonl",
        f"{run}/program 1",
        f"torchrun {run}/train.py",
    )
    head = JobHead(tmp_path / "run")

    def submitted(job: str) -> int:
        stages = [Stage("one", ("echo", str(len(job)))), Stage("two", tuple(job.split()))]
        return len(head.queue.submit_stages(keyed(stages)))

    for job, flag in wrong.items():
        with pytest.raises(SubmissionError) as caught:
            submitted(job)
        assert any(flag in fault for fault in caught.value.faults), caught.value.faults
    for job in right:
        assert submitted(job) == 2, job
