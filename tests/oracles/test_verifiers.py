"""Environments of verifiers itself, run by its own rollouts and scored by its own rubrics."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from env.environments import environment_file_check
from env.episodes.chat import TemplateChat
from env.episodes.types import EnvironmentFailedError, Episode, Limits, StopReason, Task
from tests.oracles.process import HERE, OPENRLHF
from tests.support.chats import Scripted, tokenizer
from tests.support.tiny_run import Tiny, to_argv

LIMITS = Limits(turns=5, prompt=5000, reply=300, observation=500, total=20_000, seconds=30)
TASK = Task(3, [{"role": "user", "content": "2+3="}], label="5", columns={"level": 7})
PACKAGE = '''\
import asyncio

import verifiers as vf
from datasets import Dataset

ROWS = Dataset.from_list([{"question": "1+1=", "answer": "2"}])


def right(completion, answer):
    return float(answer in (completion[-1]["content"] or ""))


def level(level):
    return level


ORDER = []


async def scored(state):
    ORDER.append("score")
    if state["answer"] == "slow":
        await asyncio.sleep(9)
    return 0


class Keeps(vf.Rubric):
    @vf.cleanup
    async def release(self, state):
        ORDER.append("rubric")
        raise OSError("the sandbox has gone already")


def rubric():
    return Keeps(funcs=[right, level, scored], weights=[1.0, 0.1, 0.0])


class Guess(vf.MultiTurnEnv):
    how = ""

    async def setup_state(self, state):
        if self.how == "setup":
            raise vf.SandboxError("no sandbox")
        if self.how == "setup raises":
            raise KeyError("broken")
        if self.how == "setup waits":
            await asyncio.sleep(9)
        return state

    @vf.cleanup
    async def release(self, state):
        ORDER.append("environment")

    @vf.stop
    async def is_right(self, state):
        last = state["trajectory"][-1]["completion"][-1] if state["trajectory"] else None
        return last is not None and state["answer"] in last["content"]

    async def env_response(self, messages, state, **kwargs):
        if self.how == "raise":
            raise KeyError("broken")
        if self.how == "error":
            raise vf.SandboxError("no sandbox")
        if self.how == "wait":
            await asyncio.sleep(9)
        if self.how == "change":
            messages[0].content = "other"
        return [{"role": "user", "content": "No. Again."}]


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    if a == 13:
        raise ValueError("no luck")
    return a * b


def load_environment(kind="single", how=""):
    made = dict(dataset=ROWS, rubric=rubric())
    if kind == "single":
        return vf.SingleTurnEnv(**made)
    if kind == "tools":
        return vf.ToolEnv(tools=[multiply], **made)
    env = Guess(**made)
    env.how = how
    return env
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """verifiers and a package of an environment, importable; without the clients of sandboxes."""
    directory = tmp_path_factory.mktemp("packages")
    (directory / "own_env.py").write_text(PACKAGE)
    before = list(sys.path)
    sys.path += [str(OPENRLHF), str(directory), str(HERE / "peers")]
    with import_module("absent").empty_modules("prime_sandboxes", "prime_tunnel", "aiolimiter"):
        import_module("verifiers.envs.tool_env")
        import_module("env.environments.verifiers_environment")
    yield
    sys.path[:] = before


def run(
    replies: list[str], limits: Limits = LIMITS, task: Task = TASK, **arguments: str
) -> tuple[Episode, Any, Any]:
    """The episode, the tokeniser, and what the policy was asked."""
    from env.environments.load import verifiers_attempt

    tokens = tokenizer("qwen2_5")
    policy = Scripted(tokens, replies)
    attempt = verifiers_attempt("verifiers:own-env", arguments, TemplateChat(tokens), limits)
    return asyncio.run(attempt(task, policy)), tokens, policy


def actions(episode: Episode, tokens: Any) -> str:
    chosen = [t for t, m in zip(episode.tokens, episode.action_mask, strict=True) if m]
    return str(tokens.decode(chosen))


def score(episode: Episode) -> tuple[float, dict[str, float]]:
    assert episode.score is not None
    metrics = dict(episode.score.metrics)
    del metrics["scored"]
    return round(episode.score.reward, 9), metrics


@pytest.mark.usefixtures("package")
def test_one_turn_is_scored_by_the_rubric() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    episode, tokens, _ = run(["It is 5."])
    assert signal.getsignal(signal.SIGTERM) is handler
    assert actions(episode, tokens) == "It is 5.<|im_end|>"
    assert score(episode) == (1.7, {"right": 1.0, "level": 7.0, "num_turns": 1.0})
    assert episode.stop is StopReason.DONE
    assert environment_file_check.environment("verifiers:own-env").fault == ""


@pytest.mark.usefixtures("package")
def test_turns_keep_the_tokens_that_the_policy_wrote() -> None:
    episode, tokens, policy = run(["4", "6", "5"], kind="turns")
    assert actions(episode, tokens) == "4<|im_end|>6<|im_end|>5<|im_end|>"
    again = "\n<|im_start|>user\nNo. Again.<|im_end|>\n<|im_start|>assistant\n"
    whole = tokens.decode(episode.tokens)
    assert whole.endswith(f"4<|im_end|>{again}6<|im_end|>{again}5<|im_end|>")
    for context in policy.contexts:
        assert list(context.tokens) == episode.tokens[: len(context.tokens)]
    assert score(episode) == (1.7, {"right": 1.0, "level": 7.0, "num_turns": 3.0})
    assert (episode.turns, episode.stop) == (3, StopReason.DONE)


@pytest.mark.usefixtures("package")
def test_tools_are_called_and_their_errors_answered() -> None:
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": %d, "b": 2}}\n</tool_call>'
    bad = "<tool_call>{</tool_call>"
    episode, tokens, _ = run([call % 4, call % 13, bad, "It is 5."], kind="tools")
    whole = tokens.decode(episode.tokens)
    assert '"name": "multiply"' in episode.prompt
    assert "<tool_response>\n8\n</tool_response>" in whole
    assert "no luck" in whole
    assert "<tool_response>" not in actions(episode, tokens)
    reward, metrics = score(episode)
    assert (reward, metrics["total_tool_calls"], metrics["multiply_calls"]) == (1.7, 3.0, 2.0)
    assert (episode.turns, episode.stop) == (4, StopReason.DONE)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("limits", "stop", "turns"),
    [
        (Limits(turns=2, prompt=500, reply=50, observation=99, total=900), StopReason.TURNS, 2),
        (
            Limits(turns=9, prompt=500, reply=50, observation=99, total=170),
            StopReason.OBSERVATION_LENGTH,
            3,
        ),
    ],
)
def test_limits_end_an_episode_and_it_is_scored(
    limits: Limits, stop: StopReason, turns: int
) -> None:
    episode, _, _ = run(["4"] * 9, limits, kind="turns")
    assert (episode.stop, episode.turns) == (stop, turns)
    assert len(episode.tokens) <= limits.total
    assert score(episode)[0] == pytest.approx(0.7)


@pytest.mark.usefixtures("package")
def test_an_environment_that_waits_too_long_ends_the_episode() -> None:
    limits = Limits(turns=9, prompt=500, reply=50, observation=99, total=900, seconds=0.5)
    episode, _, _ = run(["4"], limits, kind="turns", how="wait")
    assert (episode.stop, episode.turns) == (StopReason.WALL_TIME, 1)
    assert score(episode)[0] == pytest.approx(0.7)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "KeyError: 'broken'"),
        ("error", "SandboxError: no sandbox"),
        ("change", "changes earlier messages of the chat after reply 1"),
    ],
)
def test_an_environment_that_fails_is_a_failed_episode(how: str, reason: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=reason):
        run(["4", "4"], kind="turns", how=how)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("", ["environment", "score", "rubric"]),
        ("wait", ["environment", "score", "rubric"]),
        ("raise", ["environment", "rubric"]),
        ("error", ["environment", "rubric"]),
        ("change", ["environment", "rubric"]),
        ("setup", ["environment", "rubric"]),
        ("setup raises", ["environment", "rubric"]),
        ("setup waits", ["environment", "rubric"]),
    ],
)
def test_the_clean_ups_run_as_in_verifiers_after_a_failure_too(how: str, order: list[str]) -> None:
    """A clean-up that fails costs a line in the log."""
    called = import_module("own_env").ORDER
    called.clear()
    limits = replace(LIMITS, seconds=2.0) if "wait" in how else LIMITS
    with suppress(EnvironmentFailedError):
        run(["4", "5"], limits, kind="turns", how=how)
    assert called == order


@pytest.mark.usefixtures("package")
def test_a_rubric_that_scores_too_slowly_is_cleaned_up() -> None:
    called = import_module("own_env").ORDER
    called.clear()
    with pytest.raises(EnvironmentFailedError, match="TimeoutError"):
        run(["4"], replace(LIMITS, seconds=2.0), task=replace(TASK, label="slow"))
    assert called == ["score", "rubric"]


def test_a_plan_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "verifiers:no-such-env"
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(OPENRLHF)])
    assert (
        environment_file_check.environment(spec).fault
        == "the package verifiers is not installed here"
    )
    for version, fault in (("0.4.0", "another interface"), ("0.3.1", "module no_such_env")):
        about = tmp_path / version / "verifiers-1.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Name: verifiers\nVersion: {version}\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / version))
            assert fault in environment_file_check.environment(spec).fault
    assert environment_file_check.environment("verifiers:").fault == "names no environment"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("how", "fault", "warning"),
    [("", "", ""), ("setup raises", "KeyError: 'broken'", ""), ("setup", "", "no sandbox")],
)
def test_an_episode_is_tried_before_a_run(
    tiny: Tiny, tmp_path: Path, how: str, fault: str, warning: str
) -> None:
    """A sandbox that is away is a warning; a bug is a fault with the package's line."""
    from trainer.config import code_findings, job_checks
    from trainer.config.parse import parse
    from trainer.rollout.try_code import try_environment

    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1), "level": 1} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = json.dumps({"kind": "turns", "how": how})
    flags = {"environment": "verifiers:own-env", "environment_args": arguments, "max_turns": 2}
    given = tiny.needed(tmp_path / "run") | flags | {"prompt_data": data, "remote_rm_url": None}
    config = parse(to_argv(given))
    found = code_findings.of([*try_environment(config, job_checks.first_rows(config))])
    assert [fault in one and "own_env.py:" in one for one in found.faults] == [True] * bool(fault)
    assert [warning in one for one in found.warnings] == [True] * bool(warning)
    scores = [] if fault or warning else [pytest.approx(1.1)]
    assert [one.score for one in found.tried] == scores
