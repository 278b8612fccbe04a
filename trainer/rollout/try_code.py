"""`python -m trainer.rollout.try_code RESULTS SECONDS FLAGS`: runs a user's code on the first rows.

What it finds is written to the file RESULTS (`trainer.config.code_findings`). Ray is not imported.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import IO, Any

from contract.background import in_background
from contract.exit_codes import ExitCode
from env import coroutines
from env.data.prompts import PromptError
from env.environments.load import EnvironmentSpecError
from env.episodes.attempts import Attempt, raised_by
from env.episodes.chat import Chat, PlainChat, TemplateChat
from env.episodes.codec import TextCodec
from env.episodes.types import (
    Context,
    EnvironmentFailedError,
    Episode,
    Generated,
    ReplyStop,
    Task,
)
from env.types import Prompt
from env.user_code import NOT_THE_USERS, Cause, same_fault
from trainer.algorithms import own_trials
from trainer.config import code_check, code_findings, job_checks
from trainer.config.code_findings import Found, Tried, Trouble
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.models import pretrained
from trainer.rollout import episode_setup
from trainer.rollout.prompts import load_codec
from trainer.types import TrainingError, UserFormulaError

UNSCORED = (
    "its episode has no score, and there is no reward beside it: give it a method `score`, rewards "
    "of its turns, or --remote_rm_url"
)
UNENDED_IMPORT = "the import of its file has not ended"
"""`plan` knows the warning by these words."""
BELOW_MAIN = (
    'Put what trains or serves below `if __name__ == "__main__":`, so that the file can be imported'
)


def main(argv: Sequence[str]) -> int:
    """Try the code of the flags; see the module."""
    file, seconds, words = Path(argv[0]), float(argv[1]), argv[2:]
    config = parse(words, incomplete=True, absent=True)
    with file.open("w") as results:
        _watch(results, seconds, config)
        try:
            prompts = job_checks.first_rows(config)
        except PromptError:  # `data_faults` says it
            prompts = []
        for one in chain(
            code_check.try_rewards(config, prompts), code_check.try_combination(config)
        ):
            code_findings.write(results, one)
        if code_check.environment_of(config):
            for one in try_environment(config, prompts):
                code_findings.write(results, one)
        for one in try_formulas(config):
            code_findings.write(results, one)
        code_findings.write(results, None)
    return ExitCode.FINISHED


def try_formulas(config: Config) -> Iterator[Trouble]:
    """Yield what is wrong with a user's loss and estimator, by invented samples."""
    flags = code_check.formulas_of(config)
    for flag, call in ((flags[0], own_trials.try_loss), (flags[1], own_trials.try_estimator)):
        if not flag:
            continue
        try:
            call(config)
        except TrainingError as error:
            said = str(error).removeprefix(f"{flag} ")
            yield Trouble(flag, said, refuses=isinstance(error, UserFormulaError))


def try_environment(config: Config, prompts: Sequence[Prompt]) -> Iterator[Found]:
    """Yield what an episode with a scripted reply gives, in the environment that is a user's code.

    If it fails, the next row has an episode, too. Without rows the environment is made only.
    """
    flag = code_check.environment_of(config)
    here = Path(config.pretrain).is_dir()
    if config.episodes.agent_func_path and not here:
        problem = f"not tried: an agent needs the tokeniser of {config.pretrain}, which is not here"
        yield Trouble(flag, problem, refuses=False)
        return
    pretrained.trust(config.trust_remote_code)
    codec = load_codec(config.pretrain) if here else TextCodec(Letters())
    chat = _chat(config, codec, here=here)
    try:
        attempt = episode_setup.attempt_of(config, chat, codec)
    except EnvironmentSpecError as error:
        yield code_check.unloaded(flag, error, error.raised)
        return
    errors = []
    for prompt in prompts[: code_check.ROWS]:
        reply = code_check.answer_of(prompt) or code_check.NONSENSE
        try:
            episode = coroutines.run(_episode(attempt, chat, prompt, reply))
        except EnvironmentFailedError as error:
            errors.append(error)
            continue
        value = _score(episode)
        turns = f"{episode.turns} turn{'s' if episode.turns > 1 else ''}"
        if value is None and not (config.reward_spec or config.has_reward_model):
            yield Trouble(flag, UNSCORED, refuses=False)
        name = f"{flag.partition(' ')[2]}, {turns}"
        yield Tried(name, prompt.index + 1, code_check.shown(reply), value)
        break
    yield from _failures(flag, errors, len(prompts))


def try_environment_here(
    config: Config, prompts: Sequence[Prompt], seconds: float = code_check.SECONDS
) -> list[Found]:
    """Return what `try_environment` finds of an object of this process, in a thread of its own.

    An episode that has not ended after `seconds` is a warning, and goes on behind.
    """
    trial = in_background("environment", lambda: [*try_environment(config, prompts)])
    wait([trial], seconds)
    if trial.done():
        return trial.result()
    problem = f"it has not ended after {seconds:g} s, so it was not tried to its end"
    return [Trouble(code_check.environment_of(config), problem, refuses=False)]


def _failures(flag: str, errors: Sequence[EnvironmentFailedError], rows: int) -> Iterator[Trouble]:
    raised = [raised_by(error) for error in errors]
    same = same_fault(raised) if len(errors) == rows else None
    if same is not None and same.cause is Cause.BUG:
        yield code_check.failed(flag, same, f"in an episode of each of the first {rows} rows")
    elif errors:
        said = code_check.shown(str(errors[0]))
        problem = f"{len(errors)} of {rows} episodes with a scripted reply failed: {said}"
        yield Trouble(flag, problem, raised[0].place if raised[0] else "", refuses=False)


async def _episode(attempt: Attempt, chat: Chat, prompt: Prompt, reply: str) -> Episode:
    """Return an episode in which each reply of the policy is `reply`."""

    async def generate(context: Context) -> Generated:
        tokens = chat.encode(reply)[: context.limit]
        return Generated(tokens, [0.0] * len(tokens), [0] * len(tokens), ReplyStop.END)

    return await attempt(Task.of(prompt).copied(), generate)


def _score(episode: Episode) -> float | None:
    """Return the environment's score with the rewards of its turns; None if it gives neither."""
    given = episode.score
    if given is None and not episode.turn_rewards:
        return None
    own = given.reward if given and given.ok else 0.0
    return own + sum(episode.turn_rewards.values())


def _chat(config: Config, codec: TextCodec, *, here: bool) -> Chat:
    if here:
        return episode_setup.chat_of(config, codec)
    kind = TemplateChat if config.apply_chat_template else PlainChat
    return kind(codec.tokenizer)


class Letters:
    """Stands for a tokeniser that is not on this machine: each character is a token."""

    eos_token_id = bos_token_id = pad_token_id = None
    all_special_ids: Sequence[int] = ()

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, tokens))

    def get_chat_template(self, **_: Any) -> str:
        return ""

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **_: Any
    ) -> str:
        shown = f"{tools}\n" if tools else ""
        return shown + "".join(f"{one['role']}: {one.get('content')}\n" for one in messages)


def _watch(results: IO[str], seconds: float, config: Config) -> None:
    """After `seconds`, write which line of the user's code has not ended, and end the process."""
    flag = code_check.environment_of(config) or config.reward_flag

    def tell() -> None:
        place, is_import = _users_line()
        at = f" at {place}" if place else ""
        problem = f"it has not ended after {seconds:g} s{at}, so it was not tried to its end"
        if is_import:
            problem = f"{UNENDED_IMPORT} after {seconds:g} s{at}. {BELOW_MAIN}"
        code_findings.write(results, Trouble(flag, problem, place, refuses=False))
        code_findings.write(results, None)
        sys.stdout.flush()
        os._exit(ExitCode.FINISHED)

    timer = threading.Timer(seconds, tell)
    timer.daemon = True
    timer.start()


def _users_line() -> tuple[str, bool]:
    """Return the innermost line of a user's code that a thread is at, and if its file is imported.

    A thread that imports counts first. "" if no thread is in a user's code.
    """
    found = []
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        own = []
        while at is not None:
            if not at.f_code.co_filename.startswith(("<", *NOT_THE_USERS)):
                own.append(at)
            at = at.f_back
        if own:
            imports = any(one.f_code.co_name == "<module>" for one in own)
            found.append((f"{own[0].f_code.co_filename}:{own[0].f_lineno}", imports))
    return max(found, key=lambda one: one[1], default=("", False))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a user's threads may go on
