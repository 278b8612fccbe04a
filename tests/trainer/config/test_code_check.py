"""A user's reward function is run on the first rows before anything starts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoint.commands import plan_verdict
from env.types import IN_PYTHON
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny, to_argv
from trainer.config import code_check, code_findings, job_checks, whole_job
from trainer.config.code_findings import CodeCheck
from trainer.config.config import Config
from trainer.config.parse import parse

REWARDS = """
import asyncio, os, sys, time

def right(completions, answer, **kwargs):
    print("two words")
    return [float(c == a) for c, a in zip(completions, answer)]

async def waits(completions, answer, **kwargs):
    await asyncio.sleep(0)
    return right(completions, answer)

class Callable:
    def __call__(self, completions, answer, **kwargs):
        return right(completions, answer)

def label_of_another(completions, label):
    return [1.0 for _ in completions]

def no_kwargs(completions):
    return [1.0 for _ in completions]

def adds(completions, answer, **kwargs):
    return [len(c) + a for c, a in zip(completions, answer)]

def one_for_all(completions, **kwargs):
    return [1.0]

def no_return(completions, **kwargs):
    len(completions)

def one_number(completions, **kwargs):
    return 1.0

def texts(completions, **kwargs):
    return ["good"] * len(completions)

def leaves(completions, **kwargs):
    sys.exit(0)

def splits(completions, **kwargs):
    return [float(c) for c in completions]

def nobody(completions, **kwargs):
    return [None for _ in completions]

def constant(completions, **kwargs):
    return [0.5 for _ in completions]

def infinite(completions, **kwargs):
    return [float("inf") for _ in completions]

def nan(completions, **kwargs):
    return [float("nan") for _ in completions]

def away(completions, **kwargs):
    raise ConnectionError("no judge")

def secret(completions, **kwargs):
    raise ValueError("key " + os.environ["JUDGE_API_KEY"])

def hangs(completions, **kwargs):
    time.sleep(3600)

def ends(completions, **kwargs):
    print("last words")
    os._exit(3)

def chats(completions, **kwargs):
    return [float(c[0]["role"] == "assistant") for c in completions]

def whole_texts(completions, **kwargs):
    return [float(c.strip() == "4") for c in completions]

def reward_func(queries, prompts, labels):
    return [float(q == p + l) for q, p, l in zip(queries, prompts, labels)]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(REWARDS)
    return path


def config_of(tiny: Tiny, run: Path, *rewards: str, **flags: Any) -> Config:
    given = tiny.needed(run) | {"remote_rm_url": None, "label_key": None, "rewards": rewards}
    return parse(to_argv(given | flags))


def tried(config: Config) -> CodeCheck:
    rows = job_checks.first_rows(config)
    return code_findings.of([*code_check.try_rewards(config, rows)])


@pytest.mark.parametrize("name", [":right", ":waits", ":Callable", ""])
def test_the_rows_answer_and_nonsense_are_scored(
    tiny: Tiny, file: Path, run_dir: Path, name: str
) -> None:
    key = None if name else "answer"  # OpenRLHF's function gets labels and no columns
    found = tried(config_of(tiny, run_dir, f"{file}{name}:1", label_key=key))
    assert (found.faults, found.warnings) == ([], [])
    assert [one.score for one in found.tried] == [1.0] * 4 + [0.0] * 4
    assert found.lines[3] == f"{file}{name}, row 4: '4' → 1, {code_check.NONSENSE!r} → 0"


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("label_of_another", "def label_of_another", "needs `label`, and is called with `answer`"),
        ("adds", "len(c) + a", "TypeError: unsupported operand"),
        ("one_for_all", "def one_for_all", "in one call, .* it fails: 1 reward for 4 completions"),
        (
            "no_kwargs",
            "def no_kwargs",
            "for each of the first 4 rows, with the row's answer, it fails: .*: add .* parameters",
        ),
        ("one_number", "def one_number", "no list of rewards in 1.0"),
        ("no_return", "def no_return", "no list of rewards in None: is a `return` missing"),
        ("texts", "def texts", r"the reward 'good' is a text \(str\): give a number, such as 1.0"),
        ("leaves", "sys.exit(0)", "SystemExit: 0"),
        (
            "splits",
            "float(c) for",
            "with the completion 'qw.* it fails: ValueError: could not",
        ),
    ],
)
def test_what_would_fail_in_the_run_is_a_fault_with_the_users_line(
    tiny: Tiny, file: Path, run_dir: Path, name: str, line: str, said: str
) -> None:
    found = tried(config_of(tiny, run_dir, f"{file}:{name}"))
    (fault,) = found.troubles
    number = next(n for n, text in enumerate(REWARDS.splitlines(), 1) if line in text)
    assert fault.refuses
    assert fault.place == f"{file}:{number}"
    assert f"Correct {file}:{number}" in str(fault)
    assert re.search(said, str(fault))


@pytest.mark.parametrize(
    ("name", "chat", "said"),
    [
        ("chats", False, "A completion is a text here, and with --apply_chat_template a list"),
        ("whole_texts", True, "a list with one message here, and without --apply_chat_template a"),
    ],
)
def test_a_completion_of_another_form_than_the_function_reads_is_told(
    tiny: Tiny, file: Path, run_dir: Path, name: str, chat: bool, said: str
) -> None:
    flags = {"apply_chat_template": True} if chat else {}
    (fault,) = tried(config_of(tiny, run_dir, f"{file}:{name}", **flags)).troubles
    assert said in str(fault)


def test_a_wrong_name_is_a_fault(tiny: Tiny, file: Path, run_dir: Path) -> None:
    (fault,) = tried(config_of(tiny, run_dir, f"{file}:nosuch")).faults
    assert "defines no function nosuch(completions, **columns)" in fault
    assert re.search(f"Name the one that scores, as in {file}:\\w+$", fault)
    assert fault.count(str(file)) == 2, "once in the flag, once in the remedy"


def test_a_file_without_a_name_is_answered_with_the_names_in_it(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text("def other(): ...\n\ndef good(completions, **kwargs): ...\n")
    (fault,) = tried(config_of(tiny, run_dir, str(own))).faults
    assert fault.endswith(f"it defines other, good. Name the one that scores, as in {own}:good")
    (fault,) = tried(config_of(tiny, run_dir, f"{own}:othr")).faults
    assert fault.endswith(f"did you mean other? Name the one that scores, as in {own}:other")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nosuch.part", "Install nosuch, or correct"),
        ("open('/nowhere/table')", "Correct"),
    ],
)
def test_what_this_machine_lacks_is_told_from_a_wrong_line(
    tiny: Tiny, file: Path, run_dir: Path, tmp_path: Path, source: str, said: str
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"{source}\ndef f(completions, **kwargs): ...\n")
    (fault,) = tried(config_of(tiny, run_dir, f"{own}:f")).refusals
    assert str(fault).endswith(f". {said} {own}:1")
    assert fault.of_here
    (fault,) = tried(config_of(tiny, run_dir, f"{file}:adds")).refusals
    assert not fault.of_here


def test_one_reward_for_right_and_wrong_is_a_warning(tiny: Tiny, file: Path, run_dir: Path) -> None:
    found = tried(config_of(tiny, run_dir, f"{file}:constant"))
    assert found.faults == []
    (warning,) = found.warnings
    assert "it gives 0.5 for each row's answer (also as '#### A' or" in warning


@pytest.mark.parametrize("spelling", code_check.SPELLINGS)
def test_a_reward_that_wants_a_common_spelling_of_the_answer_is_no_warning(
    tiny: Tiny, tmp_path: Path, run_dir: Path, spelling: str
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def f(completions, answer, **kwargs):\n"
        f"    return [{spelling!r}.format(a) in c for c, a in zip(completions, answer)]\n"
    )
    found = tried(config_of(tiny, run_dir, f"{own}:f"))
    assert (found.faults, found.warnings) == ([], [])
    assert [one.score for one in found.tried] == [0.0] * 8 + [1.0] * 4
    assert found.tried[-1].completion == spelling.format(4)


@pytest.mark.parametrize(
    ("name", "reward"), [("nobody", "None"), ("nan", "nan"), ("infinite", "inf")]
)
def test_why_a_function_scores_nothing_is_said_with_its_line(
    tiny: Tiny, file: Path, run_dir: Path, name: str, reward: str
) -> None:
    """None says that the function does not judge a completion; NaN is no reward at all."""
    (trouble,) = tried(config_of(tiny, run_dir, f"{file}:{name}")).troubles
    assert trouble.refuses is (name != "nobody")
    warning = str(trouble)
    lines = REWARDS.splitlines()
    line = next(n for n, text in enumerate(lines, 1) if f"def {name}(" in text)
    assert f"the reward is {reward} ({file}:{line})" in warning


def test_a_function_without_its_return_is_named(tiny: Tiny, tmp_path: Path, run_dir: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def other(text):\n    float(len(text))\n\n"
        "def judged(completions, **kwargs):\n    return [None for _ in completions]\n\n"
        "def of_another(texts):\n    return [other(one) for one in texts]\n\n"
        "def score(text):\n    float(len(text))\n\n"
        "def log(text):\n    print(text)\n\n"
        "def rated(completions, **kwargs):\n    log('asked')\n"
        "    return [score(one) for one in completions]\n"
    )
    (trouble,) = tried(config_of(tiny, run_dir, f"{own}:rated")).troubles
    assert trouble.refuses
    assert f"the reward is None: is a `return` missing in score ({own}:10)?" in str(trouble)
    (trouble,) = tried(config_of(tiny, run_dir, f"{own}:judged")).troubles
    assert not trouble.refuses
    assert f"the reward is None ({own}:4). Samples without a score are left out" in str(trouble)


@pytest.mark.parametrize("name", ["nobody", "away"])
def test_what_another_machine_or_row_may_change_is_a_warning(
    tiny: Tiny, file: Path, run_dir: Path, name: str
) -> None:
    found = tried(config_of(tiny, run_dir, f"{file}:{name}"))
    assert found.faults == []
    (warning,) = found.warnings
    assert "no judge" in warning if name == "away" else "scores none of the first 4" in warning


def test_each_part_of_a_sum_is_tried_and_servers_are_not_asked(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    """An address that nobody has: a request to it would be an error."""
    config = config_of(
        tiny, run_dir, f"{file}:right:1", "http://127.0.0.1:9/score:0.5", f"{file}:adds:2", "length"
    )
    found = tried(config)
    assert {one.what for one in found.tried} == {f"{file}:right"}
    assert [one.flag for one in found.troubles] == [f"--reward {file}:adds"]


def test_a_chat_is_given_as_messages(tiny: Tiny, file: Path, run_dir: Path) -> None:
    config = config_of(tiny, run_dir, f"{file}:chats", apply_chat_template=True)
    assert {one.score for one in tried(config).tried} == {1.0}


def test_secrets_of_the_environment_are_masked(
    tiny: Tiny, file: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "abcdefgh12345678")
    (fault,) = tried(config_of(tiny, run_dir, f"{file}:secret")).faults
    assert "ValueError: key ********" in fault


def in_process(
    tiny: Tiny, file: Path, run: Path, name: str, tell: Callable[[str], None] = print
) -> CodeCheck:
    config = config_of(tiny, run, f"{file}:{name}")
    words = to_argv(
        tiny.needed(run)
        | {"remote_rm_url": None, "label_key": None, "rewards": (f"{file}:{name}",)}
    )
    return code_check.in_process(config, words, 60 if name != "hangs" else 8, tell)


def test_code_that_ends_its_process_is_a_fault_and_its_last_words_are_said(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    (fault,) = in_process(tiny, file, run_dir, "ends").faults
    assert "its process was ended with exit code 3. Its last line: last words" in fault


def test_code_that_hangs_is_a_warning_with_its_line(tiny: Tiny, file: Path, run_dir: Path) -> None:
    told: list[str] = []
    found = in_process(tiny, file, run_dir, "hangs", told.append)
    assert told == [f"waiting for --reward {file}:hangs on the first 4 rows, at most 8 s"]
    line = next(n for n, text in enumerate(REWARDS.splitlines(), 1) if "sleep(3600)" in text)
    (warning,) = found.warnings
    assert found.faults == []
    assert f"has not ended after 8 s at {file}:{line}" in warning


def test_a_file_whose_import_does_not_end_is_told_to_have_a_main_part(
    tiny: Tiny, tmp_path: Path, run_dir: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text("import time\ndef train():\n    time.sleep(3600)\ntrain()\ndef f(): ...\n")
    config = config_of(tiny, run_dir, f"{own}:f")
    words = to_argv(
        tiny.needed(run_dir) | {"remote_rm_url": None, "label_key": None, "rewards": (f"{own}:f",)}
    )
    found = code_check.in_process(config, words, 8, print)
    (warning,) = found.warnings
    assert found.faults == []
    assert f"the import of its file has not ended after 8 s at {own}:3. Put what" in warning
    assert '`if __name__ == "__main__":`' in warning
    row = {"warnings": found.warnings, "faults": (), "unended_import": found.unended_import}
    verdict = "this command may not start: the import of its file has not ended; 1 warning is above"
    assert plan_verdict.sentence(row) == verdict


def test_a_reward_that_is_not_python_starts_no_process(
    tiny: Tiny, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "")
    own = tmp_path / "own.py"
    own.write_text("def f(completions, **columns:\n    return [1.0]\n")
    (fault,) = in_process(tiny, own, run_dir, "f").faults
    assert f"{own}:1: SyntaxError on import: '(' was never closed" in fault


def test_what_the_code_prints_is_shown(tiny: Tiny, file: Path, run_dir: Path) -> None:
    found = in_process(tiny, file, run_dir, "right")
    assert found.lines[4:] == ["it printed: two words"] * 2


def test_functions_of_this_process_are_tried_in_it(
    tiny: Tiny, run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No other process has them; of an exception, no stack is written."""
    from env.registry import given_in_python

    def wrong(completions: list[str], **columns: Any) -> float:
        return 1.0

    def right(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    with given_in_python(right):
        config = config_of(tiny, run_dir, IN_PYTHON)
        assert whole_job.try_code(config, []) == []
    with given_in_python(wrong):
        config = config_of(tiny, run_dir, IN_PYTHON)
        (fault,) = whole_job.try_code(config, [])
    assert fault.argument == "reward"
    assert str(fault).startswith("reward=wrong: for each of the first 4 rows, ")
    assert "it fails: no list of rewards in 1.0" in fault.problem
    assert f"{Path(__file__).name}:" in fault.problem
    assert capfd.readouterr().err == ""


def test_a_wrong_function_is_found_without_ray_and_torch(
    tiny: Tiny, file: Path, run_dir: Path, tmp_path: Path
) -> None:
    """The message comes in seconds: neither is imported, and no Ray is started."""
    words = to_argv(tiny.needed(run_dir) | {"remote_rm_url": f"{file}:adds", "label_key": None})
    results = tmp_path / "found"
    source = (
        "import sys\nfrom trainer.rollout import try_code\n"
        f"try_code.main({[str(results), '60', *words]!r})\n"
        "print(sorted({'ray', 'torch', 'transformers'} & set(sys.modules)), flush=True)\n"
        "import os; os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
    found = code_findings.read(results)
    assert found[-1] is None
    assert "TypeError" in str(found[0])


def test_a_run_without_a_users_code_starts_no_process(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    config = config_of(tiny, run_dir, "arithmetic", label_key="answer")
    assert code_check.in_process(config, []) == CodeCheck()


def test_without_data_on_this_disk_the_file_is_loaded_alone(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    config = config_of(tiny, run_dir, f"{file}:adds", prompt_data="openai/gsm8k")
    found = tried(config)
    assert found.faults == []
    (warning,) = found.warnings
    assert "it was loaded and not run" in warning


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return sum(rewards)", ""),
        ("return rewards['first']", "TypeError: list indices"),
        ("return None", "it gave None for the rewards \\[0.5, 0.5\\]"),
    ],
)
def test_a_combination_of_reward_models_is_tried(
    tiny: Tiny, tmp_path: Path, run_dir: Path, body: str, said: str
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"def combine(rewards):\n    {body}\n")
    models = {"reward_pretrain": "a/first,b/second", "reward_combine": own}
    config = config_of(tiny, run_dir, rewards=None, **models)
    troubles = [*code_check.try_combination(config)]
    if not said:
        assert troubles == []
        return
    (fault,) = troubles
    assert re.search(said, str(fault))
    assert fault.place in (f"{own}:1", f"{own}:2")


def test_a_users_loss_and_estimator_are_tried_in_the_process(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def loss(tokens, bounds):\n    return tokens.log_ratio * tokens.unknown\n\n\n"
        "def worth(completions):\n    return completions.rewards - 0.5\n"
    )
    flags = {
        "policy_loss_type": f"{own}:loss",
        "advantage_estimator": f"{own}:worth",
        "rollout_batch_size": 8,
        "train_batch_size": 8,
    }
    words = to_argv(tiny.needed(run_dir) | flags)
    found = code_check.in_process(parse(words), words, seconds=120)
    (fault,) = found.faults
    assert fault.startswith(f"--policy_loss_type {own}:loss: raised AttributeError")
    assert f"{own}:2" in fault
