"""Several rewards with weights, and a judge behind an endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from contract.options import ConfigError
from env.http.client import RewardRejected, RewardUnreachable
from env.registry import RewardSpecError, pure_reward, reward_function
from env.rewards import judge
from env.types import RewardRequest, Score
from tests.support.scripted_server import ScriptedServer
from trainer.config.parse import parse

GOOD = "<think>2+3</think><answer>#### 5</answer>"
REQUESTS = [RewardRequest(f"Q{text}", "Q", "5") for text in (GOOD, "#### 5", "#### 6")]


def scores(*specs: str) -> list[Score]:
    return reward_function(specs)(REQUESTS)


def test_the_reward_is_the_weighted_sum_and_the_metrics_have_every_part() -> None:
    found = scores("gsm8k:1", "format:0.2", "length?free=10&most=20:-1")
    assert [score.reward for score in found] == pytest.approx([1.2 - 0.0, 0.0, -1.0])
    assert found[0].metrics["reward_gsm8k"] == 1.0
    assert found[0].metrics["reward_format"] == 1.0
    assert [part.weight for part in found[0].parts] == [1.0, 0.2, -1.0]
    assert sum(part.reward * part.weight for part in found[0].parts) == found[0].reward
    assert found[0].plain().parts == found[0].parts
    assert [score.metrics["acc"] for score in found] == [1.0, 1.0, 0.0]


def test_a_part_without_a_weight_counts_once_and_names_differ() -> None:
    found = scores("gsm8k", "format:0", "format?pattern=.*:0.5")
    assert [score.reward for score in found] == [1.5, 1.5, 0.5]
    assert found[1].metrics["reward_format"] == 0.0
    assert found[1].metrics["reward_format_2"] == 1.0


def test_the_metric_format_is_that_of_the_reward_format() -> None:
    for order in (("gsm8k:1", "format:0.5"), ("format:0.5", "gsm8k:1")):
        found = scores(*order)
        assert [score.metrics["format"] for score in found] == [1.0, 0.0, 0.0], (
            "gsm8k says 1 always"
        )
        assert [score.metrics["acc"] for score in found] == [1.0, 1.0, 0.0]


def test_a_part_that_cannot_score_fails_the_sample_whatever_the_others_say() -> None:
    found = reward_function(["format:1", "gsm8k:1"])([RewardRequest("QA", "Q", "many")])
    assert not found[0].ok
    assert found[0].error.startswith("gsm8k: no number in the label 'many'")


def test_a_url_s_port_is_no_weight(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(lambda _, body: (200, {"rewards": [0.5] * len(body["query"])}))
    base = server.url.removesuffix("/get_reward")
    assert [score.reward for score in scores(base, "gsm8k:2")] == [2.5, 2.5, 0.5]
    found = scores(f"{server.url}:3", "gsm8k:2")
    assert [score.reward for score in found] == [3.5, 3.5, 1.5]
    assert found[0].metrics["reward_server"] == 0.5


def test_only_rewards_without_effects_are_pure() -> None:
    assert pure_reward(["gsm8k:1", "format:0.2"]) is not None
    assert pure_reward(["gsm8k:1", "http://h:1/x:2"]) is None
    assert pure_reward(["gsm8k:1", "judge?url=http://h/v1&model=m:2"]) is None
    assert pure_reward("") is None
    for find in (reward_function, pure_reward):
        with pytest.raises(RewardSpecError, match="Did you mean 'gsm8k'"):
            find(["format:1", "gsm8:1"])


FLAGS = ["--pretrain", "model", "--prompt_data", "owner/rows", "--run_dir", "run"]


def test_the_flag_is_given_several_times_or_with_several_values() -> None:
    for words in (["--reward", "a:1", "--reward", "b:0.2"], ["--reward", "a:1", "b:0.2"]):
        config = parse([*FLAGS, *words])
        assert config.reward_spec == ("a:1", "b:0.2")
        assert not config.has_reward_model
    with pytest.raises(ConfigError, match="--remote_rm_url gives a reward, too"):
        parse([*FLAGS, "--reward", "a:1", "--remote_rm_url", "gsm8k"])
    spec = "http://user:hunter2@h/get_reward?token=abc123"
    with pytest.raises(ConfigError, match="gives a reward, too") as caught:
        parse([*FLAGS, "--reward", spec, "--remote_rm_url", "gsm8k"])
    shown = f"{caught.value} {parse([*FLAGS, '--remote_rm_url', spec]).reward_flag}"
    assert "hunter2" not in shown
    assert "abc123" not in shown
    with pytest.raises(ConfigError, match=r"--reward: .*\(given: /none/r\.py\)"):
        parse([*FLAGS, "--reward", "/none/r.py:0.5"])


def test_a_weight_is_finite() -> None:
    with pytest.raises(RewardSpecError, match="gsm8k: its weight 1e999 is infinite"):
        scores("gsm8k:1e999")


def answer(text: object) -> tuple[int, object]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def judged(server: ScriptedServer, options: str = "", count: int = 3) -> list[Score]:
    url = server.url.removesuffix("/get_reward")
    spec = f"judge?url={url}/v1&model=judge-7b&deadline=1{options}"
    return reward_function(spec)(REQUESTS[:count])


def test_a_judge_s_last_score_counts_and_it_reads_prompt_label_and_answer(
    scripted: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    server = scripted(lambda *_: answer("Score: 2 at first.\n**Score: 7.5**"))
    assert [score.reward for score in judged(server)] == [0.75] * 3
    asked = server.bodies[0]
    assert asked["model"] == "judge-7b"
    text = asked["messages"][0]["content"]
    assert "Question:\nQ\n" in text
    assert "Reference answer:\n5\n" in text
    template = tmp_path / "template.txt"
    template.write_text("{prompt}|{label}|{response}")
    (one,) = judged(server, f"&template={template}&best=100", 1)
    assert one.reward == 0.075
    assert server.bodies[-1]["messages"][0]["content"] == f"Q|5|{GOOD}"


def test_text_in_braces_within_an_answer_stays_as_it_is() -> None:
    one = judge.make("http://h/v1", "m")
    request = RewardRequest("Qsee {label} and {prompt}", "Q", "5")
    assert "see {label} and {prompt}" in json.dumps(one._body(request))


@pytest.mark.parametrize("said", ["I do not know", "Score: 11", "Score: -1", None, "Score: 1.2.3"])
def test_an_answer_without_a_score_in_range_is_asked_for_again_and_then_a_failure(
    scripted: Callable[..., ScriptedServer], said: object
) -> None:
    server = scripted(lambda *_: answer(said))
    (failed,) = judged(server, count=1)
    assert not failed.ok
    assert "in 3 answers" in failed.error
    assert len(server.bodies) == 3
    again = scripted(lambda number, _: answer("Score: 4" if number else said))
    assert judged(again, count=1)[0].reward == 0.4


def test_an_outage_is_retried_and_is_never_a_score(
    scripted: Callable[..., ScriptedServer],
) -> None:
    broken = (500, b"down")
    passing = scripted(lambda number, _: answer("Score: 10") if number > 1 else broken)
    assert [score.reward for score in judged(passing)] == [1.0] * 3
    with pytest.raises(RewardUnreachable, match="HTTP 500"):
        judged(scripted(lambda *_: broken))
    with pytest.raises(RewardUnreachable, match="not a chat completion"):
        judged(scripted(lambda *_: (200, {"choices": []})), count=1)

    def only_the_first(_: int, body: dict[str, object]) -> tuple[int, object]:
        return answer("Score: 5") if "think" in json.dumps(body) else broken

    partly = judged(scripted(only_the_first))
    assert [score.ok for score in partly] == [True, False, False]
    assert "HTTP 500" in partly[1].error


def test_a_judge_s_fault_is_told_when_the_deadline_cuts_the_next_try_short(
    scripted: Callable[..., ScriptedServer],
) -> None:
    def down_then_silent(number: int, _: dict[str, object]) -> tuple[int, object]:
        time.sleep(2 if number else 0)
        return 500, b"down"

    with pytest.raises(RewardUnreachable, match="HTTP 500"):
        judged(scripted(down_then_silent), count=1)


def test_an_outage_of_a_judge_takes_one_deadline_for_all_samples_of_a_batch(
    scripted: Callable[..., ScriptedServer],
) -> None:
    url = scripted(lambda *_: (500, b"down")).url.removesuffix("/get_reward")
    reward = reward_function(f"judge?url={url}/v1&model=m&deadline=0.5&concurrency=2")
    began = time.monotonic()
    with pytest.raises(RewardUnreachable, match="HTTP 500"):
        reward([REQUESTS[0]] * 30)
    assert time.monotonic() - began < 4, "each pair of 30 samples took its own 0.5 s"


def test_all_askings_about_a_sample_have_one_deadline(
    scripted: Callable[..., ScriptedServer],
) -> None:
    def slow(*_: object) -> tuple[int, object]:
        time.sleep(0.8)
        return answer("I do not know")

    server = scripted(slow)
    # The second asking has 0.2 s. On a busy machine the first may have taken them.
    with suppress(RewardUnreachable):
        (failed,) = judged(server, count=1)
        assert "in 1 answers" in failed.error
    assert len(server.bodies) < 3, "three askings take 2.4 s, and the deadline is 1 s"


def test_a_judge_that_is_slow_and_answers_is_waited_for(
    scripted: Callable[..., ScriptedServer],
) -> None:
    def slow(*_: object) -> tuple[int, object]:
        time.sleep(0.4)
        return answer("Score: 10")

    server = scripted(slow)
    assert [score.reward for score in judged(server, "&concurrency=1", 3)] == [1.0] * 3


def test_no_proxy_leads_to_a_judge_that_is_near(
    scripted: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://user:hunter2@127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server = scripted(lambda *_: answer("Score: 10"))
    assert judged(server, count=1)[0].reward == 1.0


@pytest.mark.parametrize(
    ("proxy", "says"),
    [
        ("socks5://user:hunter2@proxy:1080", "needs `pip install httpx[socks]`"),
        ("ftp://user:hunter2@proxy:21", "is not a URL such as http://proxy:3128"),
        ("http://user:hunter2@proxy:port", "is not a URL such as http://proxy:3128"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, proxy: str, says: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(RewardSpecError) as caught:
        reward_function("judge?url=https://judge.example.com/v1&model=m")
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_refusal_of_one_sample_fails_it_and_a_wrong_key_ends_at_once(
    scripted: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    (failed,) = judged(scripted(lambda *_: (400, b"context too long")), count=1)
    assert "HTTP 400" in failed.error
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    server = scripted(lambda *_: (401, b"bad key"))
    with pytest.raises(RewardRejected, match="OPENAI_API_KEY wrong") as caught:
        judged(server, count=1)
    assert "secret-key" not in str(caught.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("status", [302, 401, 404, 405])
def test_what_a_judge_refuses_that_has_answered_is_an_outage(
    scripted: Callable[..., ScriptedServer], status: int
) -> None:
    says = {"choices": [{"message": {"content": "Score: 5"}}]}
    server = scripted(lambda number, _: (status, b"login") if number == 1 else (200, says))
    for _ in range(2):
        (score,) = judged(server, "&deadline=20", count=1)
        assert score.reward == 0.5
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("url=http://h/v1", "judge wants model=NAME"),
        ("url=h:8000&model=m", "'h:8000' is not a URL such as http://host:8000/v1"),
        ("url=http://user:secret@h/v1&model=m", "the url holds a password; give a key"),
        ("url=http://h/v1&model=m&template=/none", "template /none: No such file"),
        ("url=http://h/v1&model=m&pattern=Score", "wants one group"),
        ("url=http://h/v1&model=m&best=0", "are above 0"),
        ("url=http://h/v1&model=m&best=nan", "best is 'nan', where a number is wanted"),
        ("url=http://h/v1&model=m&deadline=1e999", "deadline is '1e999', where a number is"),
        ("url=http://h/v1&model=m&best=many", "best is 'many', where a number is wanted"),
    ],
)
def test_a_wrong_option_of_a_judge_is_named(options: str, says: str) -> None:
    with pytest.raises(RewardSpecError) as caught:
        reward_function(f"judge?{options}")
    assert says in str(caught.value)
