"""`python -m trainer.rollout.try_code RESULTS SECONDS FLAGS`: runs a user's code on the first rows.

What it finds is written to the file RESULTS (`trainer.config.code_findings`). Ray is not imported.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import IO, Any

from contract.background import in_background
from contract.exit_codes import ExitCode
from env import coroutines
from env.data.prompts import PromptError
from env.environments.load import EnvironmentSpecError, trial
from env.episodes.attempts import Attempt, EnvironmentAttempt, raised_by
from env.episodes.chat import Chat, PlainChat, TemplateChat
from env.episodes.codec import TextCodec
from env.episodes.environment import Environment
from env.episodes.types import (
    Context,
    EnvironmentFailedError,
    Episode,
    Generated,
    ReplyStop,
    Task,
)
from env.types import IN_PYTHON, Prompt
from env.user_code import NOT_THE_USERS, Cause, defined_at, same_fault
from trainer.algorithms import own_trials
from trainer.config import code_check, code_findings, job_checks
from trainer.config.code_findings import Found, Tried, Trouble
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.models import pretrained
from trainer.rollout import episode_setup
from trainer.rollout.prompts import load_codec
from trainer.types import TrainingError, UserFormulaError

UNSCORED = "its episode has no score, and there is no reward beside it"
SCORED = "Give it a method `score` or rewards of its turns, or give --remote_rm_url"
BELOW_MAIN = (
    'Put what trains or serves below `if __name__ == "__main__":`, so that the file can be imported'
)


def main(argv: Sequence[str]) -> int:
    """Try the code of the flags; see the module."""
    file, seconds, words = Path(argv[0]), float(argv[1]), argv[2:]
    config = parse(words, incomplete=True, absent=True)
    try:
        prompts = job_checks.first_rows(config)
    except PromptError:  # `data_faults` says it
        prompts = []
    texts = None
    with suppress(Exception):  # as below
        code_check.rewards_of(config)  # imports what calls them
    if code_check.environment_of(config):
        with suppress(Exception):  # `try_environment` raises it again, after the rewards
            texts = _texts(config)
    with file.open("w") as results:  # which tells who waits that the time begins
        _watch(results, seconds, config)
        for one in chain(
            code_check.try_rewards(config, prompts), code_check.try_combination(config)
        ):
            code_findings.write(results, one)
        if code_check.environment_of(config):
            for one in try_environment(config, prompts, texts):
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


Texts = tuple[TextCodec, Chat]
"""What makes tokens of texts. To load it takes seconds, which no user's code has used."""


def _texts(config: Config) -> Texts:
    here = Path(config.pretrain).is_dir()
    pretrained.trust(config.trust_remote_code)
    codec = load_codec(config.pretrain) if here else TextCodec(Letters())
    return codec, _chat(config, codec, here=here)


def try_environment(
    config: Config, prompts: Sequence[Prompt], texts: Texts | None = None
) -> Iterator[Found]:
    """Yield what an episode with a scripted reply gives, in the environment that is a user's code.

    If it fails or has no score, the next row has an episode, too. Without rows the environment is
    made only.
    """
    flag = code_check.environment_of(config)
    if config.episodes.agent_func_path and not Path(config.pretrain).is_dir():
        problem = f"not tried: an agent needs the tokeniser of {config.pretrain}, which is not here"
        yield Trouble(flag, problem, refuses=False)
        return
    codec, chat = texts or _texts(config)
    try:
        attempt = episode_setup.attempt_of(config, chat, codec)
    except EnvironmentSpecError as error:
        trouble = code_check.unloaded(flag, error)
        if not trouble.refuses and config.episodes.environment == IN_PYTHON:
            again = "Call train again once what it needs is there"  # it would be made here, too
            trouble = replace(trouble, refuses=True, remedy=again)
        yield trouble
        return
    errors = []
    unscored = 0
    for prompt in prompts[: code_check.ROWS]:
        reply = code_check.answer_of(prompt) or code_check.NONSENSE
        try:
            episode = coroutines.run(_episode(attempt, chat, prompt, reply))
        except EnvironmentFailedError as error:
            errors.append(error)
            continue
        value = _score(episode)
        turns = f"{episode.turns} turn{'s' if episode.turns > 1 else ''}"
        name = f"{flag.partition(' ')[2]}, {turns}"
        yield Tried(name, prompt.index + 1, code_check.shown(reply), value)
        if value is not None or config.reward_spec or config.has_reward_model:
            break
        unscored += 1
    if unscored and unscored + len(errors) == len(prompts[: code_check.ROWS]):
        yield _unscored(flag, attempt)
    yield from _failures(flag, errors, len(prompts))


def try_environment_here(
    config: Config, prompts: Sequence[Prompt], seconds: float = code_check.SECONDS
) -> list[Found]:
    """Return what `try_environment` finds of an object of this process, in a thread of its own.

    An episode that has not ended after `seconds` is a warning, and goes on behind.
    """
    agent = config.episodes.agent_func_path
    texts = _texts(config) if not agent or Path(config.pretrain).is_dir() else None
    others = frozenset(sys._current_frames())
    closing = logging.getLogger("env.episodes.episode")
    once = _Once()
    closing.addFilter(once)
    try:
        running = in_background("environment", lambda: [*try_environment(config, prompts, texts)])
        wait([running], seconds)
    finally:
        closing.removeFilter(once)
    if running.done():
        return running.result()
    place, _ = _users_line(others)
    at = f" at {place}" if place else ""
    problem = f"it has not ended after {seconds:g} s{at}, so it was not tried to its end"
    problem += code_check.while_busy()
    return [Trouble(code_check.environment_of(config), problem, place, refuses=False)]


class _Once(logging.Filter):
    """Leaves out lines that were logged before: each of the trials closes its environment."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        is_new = said not in self._seen
        self._seen.add(said)
        return is_new


def _unscored(flag: str, attempt: Attempt) -> Trouble:
    """Return that no episode has a score: a fault if the environment has no way to give one."""
    if not isinstance(attempt, EnvironmentAttempt):
        return Trouble(flag, f"{UNSCORED}. {SCORED}", refuses=False)
    with trial(attempt.factory) as made:
        kind = type(made)
    place = ":".join(map(str, filter(None, defined_at(kind))))
    can_score = kind.score is not Environment.score or _mentions_rewards(kind)
    at = f" ({place})" if place else ""
    if can_score:
        return Trouble(flag, f"{UNSCORED}{at}. {SCORED}", place, refuses=False)
    return Trouble(flag, f"{UNSCORED}{at}", place, remedy=SCORED)


def _mentions_rewards(kind: type) -> bool:
    """Return whether a turn of an environment may have a reward, as its source reads."""
    try:
        sources = [
            inspect.getsource(one)
            for one in kind.__mro__
            if one is not object and not one.__module__.startswith(("env.episodes", "env.env"))
        ]
    except (OSError, TypeError):
        return False
    return any("reward" in source for source in sources)


def _failures(flag: str, errors: Sequence[EnvironmentFailedError], rows: int) -> Iterator[Trouble]:
    raised = [raised_by(error) for error in errors]
    same = same_fault(raised) if len(errors) == rows else None
    # What has neither a class nor a line is no exception of the user's code: its time was used up.
    if same is not None and same.cause is not Cause.OUTAGE and (same.name or same.file):
        raised_so = replace(same, name="", text=str(errors[0])) if not same.file else same
        yield code_check.failed(flag, raised_so, f"in an episode of each of the first {rows} rows")
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
        problem += code_check.while_busy()
        if is_import:
            problem = f"the import of its file has not ended after {seconds:g} s{at}. {BELOW_MAIN}"
        unended = Trouble(flag, problem, place, refuses=False, unended_import=is_import)
        code_findings.write(results, unended)
        code_findings.write(results, None)
        sys.stdout.flush()
        os._exit(ExitCode.FINISHED)

    timer = threading.Timer(seconds, tell)
    timer.daemon = True
    timer.start()


def _users_line(others: Collection[int] = ()) -> tuple[str, bool]:
    """Return the innermost line of a user's code that a thread is at, and if its file is imported.

    A thread that imports counts first. "" if no thread is in a user's code. `others`: threads that
    do not count.
    """
    found = []
    for thread, frame in sys._current_frames().items():
        at: FrameType | None = frame if thread not in others else None
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
