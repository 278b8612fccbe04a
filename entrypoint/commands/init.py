"""`init`: writes the files of a new run: its flags, a reward function with a test, a platform's."""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.options import did_you_mean
from entrypoint.commands.arguments import Parser, fail
from entrypoint.commands.init_platforms import PLATFORMS, Cluster, NoSourcesError, written
from entrypoint.processes.programs import as_typed

OWN = "own"
"""The reward that is written for the run."""
PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input")
ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "label", "target", "output")
CHAT_NAME = re.compile(r"instruct|chat|-it\b|qwen3", re.IGNORECASE)
SAMPLES = 8
"""Samples of a prompt."""
IMAGE = "registry.example.com/team/rollcall:cuda"

RUN = """\
# A run of Rollcall. `rollcall plan --config run.yaml` shows what it would do, and starts nothing.
# docs/flags.md has every flag; a flag of the command line beats this file.

pretrain: {model}
prompt_data: {data}
input_key: {input_key}
label_key: {label_key}
apply_chat_template: {chat}
remote_rm_url: {reward}

advantage_estimator: group_norm   # GRPO: the samples of a prompt are compared with each other
n_samples_per_prompt: {samples}
rollout_batch_size: {prompts:<4}          # prompts of a step
train_batch_size: {batch:<4}            # samples of an update: two updates in each step
prompt_max_len: 512               # tokens
generate_max_len: 512             # tokens
actor_learning_rate: 1e-6
init_kl_coef: 0.001
use_kl_loss: true
kl_estimator: k3

save_steps: 20
"""
REWARD = '''\
"""The reward of this run: a number for each completion.

`rollcall plan --config run.yaml` tries it on the first rows of the data; test_reward.py tests it.
"""

from __future__ import annotations

from typing import Any


def score(completion: str, answer: Any) -> float:
    """Return 1 if the completion ends with the row's answer, else 0. Change this to your task."""
    return float(completion.strip().endswith(str(answer).strip()))


def reward(completions: list[Any], {column}: list[Any], **columns: Any) -> list[float]:
    """Return the reward of each completion.

    The column `{column}` of the data has a value for each of them, and `columns` has the others.
    A completion is a text; with a chat template it is a list with one message.
    """
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [score(text, answer) for text, answer in zip(texts, {column}, strict=True)]
'''
TEST = '''\
"""`python -m pytest test_reward.py` tests the reward."""

from reward import reward, score


def test_the_rows_answer_scores_one_and_another_zero():
    assert score("It is 42", "42") == 1.0
    assert score("It is 41", "42") == 0.0


def test_each_completion_of_a_batch_has_its_own_reward():
    chat = [{"role": "assistant", "content": "7"}]
    assert reward(["42", chat], ["42", "8"]) == [1.0, 0.0]
'''


@dataclass(frozen=True, slots=True)
class Question:
    """A flag, and what is asked if it is not given."""

    flag: str
    help: str
    default: str = ""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


class WrongColumnError(ValueError):
    """A column that no function can take; the sentence says what to do."""


QUESTIONS = (
    Question(
        "--model", "the model: a name on the hub, or a directory", "Qwen/Qwen2.5-0.5B-Instruct"
    ),
    Question("--data", "the prompts: a name on the hub, or a file", "train.jsonl"),
    Question("--reward", "own (reward.py is written), a reward's name, FILE.py:NAME or a URL", OWN),
    Question("--nodes", "the number of nodes", "1"),
    Question("--gpus", "GPUs of each node", "8"),
    Question("--platform", f"where it runs: {', '.join(PLATFORMS)}", "none"),
)


def parser() -> Parser:
    made = Parser("init", __doc__)
    for one in QUESTIONS:
        default = f" (default: {one.default})" if one.default else ""
        made.add_argument(one.flag, help=f"{one.help}{default}")
    made.add_argument("--input-key", help="column of the prompts (default: the data's own)")
    made.add_argument("--label-key", help="column of the answers (default: the data's own)")
    made.add_argument("--name", default="rollcall-run", help="of the run's directory on the nodes")
    made.add_argument("--shared", help="that directory, if it is not NAME below the shared storage")
    made.add_argument(
        "--image", default=IMAGE, help="the image of the nodes (default: %(default)s)"
    )
    made.add_argument("--dir", type=Path, default=Path(), help="where to write (default: here)")
    made.add_argument("--yes", "-y", action="store_true", help="ask nothing: take the defaults")
    return made


def main(words: Sequence[str], ask: Callable[[str], str] = input) -> int:
    own = parser()
    options = own.parse(words)
    asks = sys.stdin.isatty() and not options.yes
    for one in QUESTIONS:
        if getattr(options, one.name) is None:
            setattr(options, one.name, _answer(one, ask) if asks else one.default)
    if options.platform not in PLATFORMS:
        of = f"it is one of {', '.join(PLATFORMS)}"
        own.error(f"--platform {options.platform}: {did_you_mean(options.platform, PLATFORMS, of)}")
    for flag, least in (("nodes", 1), ("gpus", 0)):
        text = getattr(options, flag)
        if not text.isdecimal() or int(text) < least:
            own.error(f"--{flag} {text}: it is a whole number from {least}")
    try:
        files = _files(options)
    except WrongColumnError as error:
        own.error(str(error))
    except NoSourcesError as error:
        return fail(str(error), ExitCode.UNFIT, as_json=False)
    there = [name for name in files if (options.dir / name).exists()]
    if there:
        sentence = (
            f"{', '.join(there)}: there already, in {options.dir.absolute()}. Nothing was written"
        )
        return fail(f"{sentence}: move them, or give another --dir", ExitCode.USAGE, as_json=False)
    for name, content in files.items():
        path = options.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        print(f"wrote {path}")
    _say_next(options, files)
    return ExitCode.FINISHED


def _answer(question: Question, ask: Callable[[str], str]) -> str:
    return ask(f"{question.help} [{question.default}]: ").strip() or question.default


def _files(options: argparse.Namespace) -> dict[str, str]:
    """Map the names of the run's files to their contents.

    Raises NoSourcesError and WrongColumnError.
    """
    columns = _columns(options.dir / options.data)
    input_key = options.input_key or _first(PROMPT_COLUMNS, columns)
    label_key = options.label_key or _first(ANSWER_COLUMNS, columns)
    reward = "reward.py:reward" if options.reward == OWN else options.reward
    ranks = max(1, int(options.nodes) * int(options.gpus))
    batch = SAMPLES * ranks * max(1, 32 // ranks)
    files = {
        "run.yaml": RUN.format(
            model=json.dumps(options.model),
            data=json.dumps(options.data),
            input_key=input_key,
            label_key=label_key,
            chat=json.dumps(_has_chat(options.model, options.dir / options.model)),
            reward=json.dumps(reward),
            samples=SAMPLES,
            batch=batch,
            prompts=2 * batch // SAMPLES,
        )
    }
    if options.reward == OWN:
        column = label_key.partition(".")[0]
        if not column.isidentifier() or keyword.iskeyword(column):
            raise WrongColumnError(
                f"--label-key {label_key}: reward.py takes it as a parameter, and it is no name in "
                "Python. Rename the column, or give another --reward"
            )
        files |= {"reward.py": REWARD.format(column=column), "test_reward.py": TEST}
    shared = options.shared or f"{PLATFORMS[options.platform].storage}/{options.name}"
    cluster = Cluster(
        nodes=int(options.nodes),
        gpus=int(options.gpus),
        job=_job(options, shared.rstrip("/"), reward),
        shared=shared.rstrip("/"),
        image=options.image,
    )
    return files | written(options.platform, cluster)


def _job(options: argparse.Namespace, shared: str, reward: str) -> tuple[str, ...]:
    """Return the job's words: run.yaml and the files that it names lie in `shared`."""
    words = [f"--config={shared}/run.yaml"]
    for flag, value, is_file in (
        ("pretrain", options.model, (options.dir / options.model).is_dir()),
        ("prompt_data", options.data, (options.dir / options.data).exists()),
        ("remote_rm_url", reward, ".py" in reward and "://" not in reward),
    ):
        if is_file and not Path(value).is_absolute():
            words.append(f"--{flag}={shared}/{value}")
    return tuple(words)


def _columns(data: Path) -> Sequence[str]:
    """Return the columns of a JSONL file; () for what is not here, or is another format."""
    if data.suffix not in (".jsonl", ".json") or not data.is_file():
        return ()
    try:
        with data.open() as lines:
            row = json.loads(lines.readline())
    except ValueError:
        return ()
    return tuple(row) if isinstance(row, Mapping) else ()


def _first(names: Sequence[str], columns: Sequence[str]) -> str:
    """Return the first of the usual names that the data have; the usual one if none is known."""
    return next((name for name in names if name in columns), names[0])


def _has_chat(model: str, directory: Path) -> bool:
    """Return whether a model has a chat template; of the hub's, by its name."""
    if not directory.is_dir():
        return bool(CHAT_NAME.search(model))
    config = directory / "tokenizer_config.json"
    own = config.is_file() and "chat_template" in json.loads(config.read_text())
    return own or (directory / "chat_template.jinja").is_file()


def _say_next(options: argparse.Namespace, files: Mapping[str, str]) -> None:
    where = f"cd {shlex.quote(str(options.dir))} && " if options.dir != Path() else ""
    typed = as_typed()
    sizes = f"--nodes {options.nodes} --gpus {options.gpus} --gpu-memory 80GB"
    print(f"\nlook:  {where}{typed} plan {sizes} --config run.yaml")
    if options.platform != "none":
        shared = options.shared or f"{PLATFORMS[options.platform].storage}/{options.name}"
        print(f"copy:  the files to {shared}, on storage that all nodes see")
    start = PLATFORMS[options.platform].start or f"{where}{typed} up --config run.yaml"
    print(f"start: {start}")
