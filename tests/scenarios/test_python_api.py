"""`train` from Python without Ray: what objects become in a run, and what it returns."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from rollcall import (
    Callback,
    CallbackError,
    ConfigError,
    Environment,
    Episode,
    Messages,
    Reply,
    RewardRequest,
    RunError,
    Score,
    StepEnd,
    Task,
    Turn,
    train,
)
from tests.support.local_workers import LocalLauncher
from tests.support.tiny_run import Tiny
from trainer.cluster import placement
from trainer.training import run


class NoReplicas:
    """What stands for the replicas in the memory of a cluster's nodes."""

    on = False
    complete = None

    def __init__(self, config: object) -> None: ...

    def end(self) -> None: ...

    def amend(self, state: object) -> None: ...

    def __bool__(self) -> bool:
        return False


@pytest.fixture
def flags(tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The flags of a tiny run, whose processes are objects here."""
    monkeypatch.setattr(placement, "join", lambda layout: False)
    monkeypatch.setattr(placement, "reserve", lambda layout: None)
    monkeypatch.setattr(run, "_check_models", lambda config, placed: None)
    monkeypatch.setattr(run, "_settled", lambda config, placed: config)
    monkeypatch.setattr(run, "RayLauncher", lambda *_: LocalLauncher())
    monkeypatch.setattr(run, "Replicator", NoReplicas)
    return {
        "pretrain": tiny.model,
        "prompt_data": tiny.prompts,
        "input_key": "prompt",
        "label_key": "answer",
        "rollout_engine": "hf",
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "train_batch_size": 4,
        "micro_train_batch_size": 2,
        "generate_max_len": 3,
        "advantage_estimator": "group_norm",
        "init_kl_coef": 0,
        "save_steps": 1,
        "run_dir": run_dir,
    }


def test_a_function_scores_and_the_result_says_what_came_of_it(
    flags: dict[str, Any],
    run_dir: Path,
    tiny: Tiny,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has finished is told again without an attempt, unless its model was deleted."""
    seen: list[RewardRequest] = []
    handler = signal.getsignal(signal.SIGTERM)

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        seen.extend(requests)
        return [Score.of(float(len(request.completion_ids))) for request in requests]

    result = train(**flags, reward=reward, max_steps=2, eval_dataset=tiny.held_out)
    assert (result.steps, result.samples) == (2, 16)
    assert result.reward_last is not None
    assert 0 < result.reward_last <= 3
    assert result.eval_after is not None
    assert result.run_dir == run_dir
    assert (result.model / "config.json").exists()
    assert all(request.columns["answer"] == request.label for request in seen)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert "Nothing was trained" not in capsys.readouterr().err

    (result.model / "config.json").unlink()
    again = train(**flags, reward="arithmetic", max_steps=2, eval_dataset=tiny.held_out)
    assert (again.model / "config.json").exists()
    monkeypatch.setattr(run, "run", None)
    once_more = train(**flags, reward="arithmetic", max_steps=2, eval_dataset=tiny.held_out)
    assert result == again == once_more
    assert capsys.readouterr().err.count(f"the run in {run_dir} had 2 steps") == 2
    with pytest.raises(TypeError, match="NoneType"):
        train(**flags, reward="arithmetic", max_steps=3, eval_dataset=tiny.held_out)


def test_a_column_that_is_taken_by_itself_is_told_as_an_argument(
    flags: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed = {name: value for name, value in flags.items() if name != "input_key"}
    train(**unnamed, reward="arithmetic", max_steps=1)
    assert "note: input_key prompt: the data's only column" in capsys.readouterr().out


def of_trl(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(len(text) + len(label)) for text, label in zip(completions, answer, strict=True)]


def of_openrlhf(queries: list[str], prompts: list[str], labels: list[str]) -> list[float]:
    return [float(query.startswith(prompt)) for query, prompt in zip(queries, prompts, strict=True)]


def test_functions_of_trl_and_openrlhf_score_as_they_are_and_several_are_summed(
    flags: dict[str, Any],
) -> None:
    result = train(**flags, reward=[of_trl, of_openrlhf, "arithmetic"], max_steps=1)
    assert result.reward_first is not None
    (row,) = [row for row in result.metrics() if "train/reward" in row]
    parts = [row[f"train/reward_{name}"] for name in ("of_trl", "of_openrlhf", "arithmetic")]
    assert parts[0] > 1
    assert parts[1] == 1
    assert sum(parts) == pytest.approx(result.reward_first)


def test_a_function_with_another_columns_name_is_refused_before_ray_starts(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(placement, "join", asked.append)

    def reward(completions: list[str], solution: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    with pytest.raises(ConfigError, match="solution"):
        train(**flags, reward=reward, max_steps=1)
    assert asked == []


class OneMore(Environment):
    """Two replies; the score is how many."""

    replies = 0

    async def step(self, reply: Reply) -> Turn:
        self.replies += 1
        return Turn(text="=", done=self.replies == 2)

    async def score(self, episode: Episode) -> Score:
        return Score.of(float(self.replies))


def test_a_class_is_the_environment_of_each_episode(flags: dict[str, Any]) -> None:
    result = train(**flags, environment=OneMore, max_len=32, max_steps=1)
    assert result.reward_last == 2.0


def test_a_callback_that_raises_ends_the_attempt_and_the_next_goes_on(
    flags: dict[str, Any],
) -> None:
    class Stops(Callback):
        def on_step_end(self, step: StepEnd) -> None:
            if step.step == 2:
                raise ValueError("enough")

    with pytest.raises(CallbackError, match=r"Stops\.on_step_end raised ValueError after step 2"):
        train(**flags, reward="arithmetic", callbacks=[Stops()], max_steps=3)
    assert train(**flags, reward="arithmetic", max_steps=3).steps == 3


def test_what_ends_the_program_with_a_code_is_a_run_error(
    flags: dict[str, Any], tiny: Tiny
) -> None:
    def nobody_knows(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.failed("no idea") for _ in requests]

    with pytest.raises(RunError) as raised:
        train(**flags, reward=nobody_knows, max_steps=1)
    assert raised.value.exit_code is ExitCode.JOB_FAILED


def line_of(function: Any) -> str:
    """The last line of a function, as messages name it."""
    code = function.__code__
    return f"{Path(code.co_filename).name}:{max(line for *_, line in code.co_lines() if line)}"


def test_a_reward_that_raises_for_each_row_ends_the_run_before_ray_is_asked(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def adds(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(request.query + 1) for request in requests]  # type: ignore[operator]

    monkeypatch.setattr(placement, "join", None)
    with pytest.raises(ConfigError) as caught:
        train(**flags, reward=adds, max_steps=1)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "TypeError" in str(caught.value)
    assert line_of(adds) in str(caught.value)


def test_an_interrupt_ends_the_run_with_a_sentence_and_without_the_frames_behind_it(
    flags: dict[str, Any], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupts(Callback):
        def on_step_end(self, step: StepEnd) -> None:
            if step.step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        train(**flags, reward="arithmetic", callbacks=[Interrupts()], max_steps=4)
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    assert len(raised.traceback) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("Stopped after step ")
    assert f"The same call resumes the run in {run_dir} from step " in said
    assert train(**flags, reward="arithmetic", max_steps=4).steps == 4


class GivesNothing(OneMore):
    async def reset(self, task: Task) -> Messages:
        return None  # type: ignore[return-value]


class SaysDone(Environment):
    async def step(self, reply: Reply) -> Turn:
        return "done"  # type: ignore[return-value]


class Away(OneMore):
    async def step(self, reply: Reply) -> Turn:
        raise ConnectionError("no game server")


def test_an_environment_without_its_server_is_a_warning_of_its_argument(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(placement, "join", None)
    with pytest.raises(TypeError, match="NoneType"):
        train(**flags, environment=Away, max_len=32, max_steps=1)
    warned = capsys.readouterr().err
    assert "warning: environment: 4 of 4 episodes with a scripted reply failed" in warned


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (SaysDone, "environment: in an episode of each of the first 4 rows .* returned 'done'"),
        (
            GivesNothing,
            "environment: in an episode .* GivesNothing.reset returned None, where",
        ),
        (lambda: 3, "environment: makes no environment, but int"),
        (lambda label: OneMore(), "environment: cannot be made: TypeError"),
    ],
)
def test_what_makes_no_environment_is_a_fault_before_ray_is_asked(
    flags: dict[str, Any], environment: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "join", None)
    monkeypatch.setattr(run, "run", None)
    with pytest.raises(ConfigError, match=problem) as caught:
        train(**flags, environment=environment, max_steps=1)
    assert [fault.path for fault in caught.value.faults] == ["environment"]


@pytest.mark.parametrize(("works", "code"), [(0, ExitCode.USAGE), (2, ExitCode.JOB_FAILED)])
def test_a_bug_in_all_completions_of_the_first_rollout_is_the_users(
    flags: dict[str, Any], works: int, code: ExitCode
) -> None:
    """Later it may be an answer of a server: then another attempt is made."""
    calls = 0

    def misses(requests: Sequence[RewardRequest]) -> list[Score]:
        nonlocal calls
        calls += len(requests) == 8  # the first rows, which are tried before, are fewer
        table = {} if calls > works else {"reward": 1.0}
        return [Score.of(table["reward"] + len(request.response)) for request in requests]

    with pytest.raises((RunError, ConfigError)) as caught:
        train(**flags, reward=misses, max_steps=4)
    assert isinstance(caught.value, RunError if works else ConfigError)
    assert caught.value.exit_code is code
    assert line_of(misses) in str(caught.value)
