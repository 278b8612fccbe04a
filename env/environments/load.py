"""From what a user writes after `--environment` and `--agent_func_path` to episodes."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from env.environments import registry
from env.environments.environment_file_check import METHODS
from env.environments.openrlhf_agent import AgentAttempt, SamplingParams, load_agent
from env.environments.trl_environment import is_trl, trl_factory
from env.episodes.attempts import Attempt
from env.episodes.chat import Chat, ChatError
from env.episodes.codec import TextCodec
from env.episodes.environment import Environment, EnvironmentFactory
from env.episodes.episode import CLOSE_SECONDS, close
from env.episodes.types import Limits, ToolSpec
from env.rewards.python_file import RewardFileError, load_module
from env.user_code import Raised, offered
from env.verifiers_package import PREFIX

ALIKE = 0.85
"""difflib's ratio from which a name is a misspelt one: a letter is wrong."""
ATTRIBUTES = ("stops", "tools")
"""Sequences of an environment."""


class EnvironmentSpecError(ValueError):
    """Not an environment; the message says what would be."""

    def __init__(self, problem: str, raised: Raised | None = None, *, remedy: str = "") -> None:
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        """What to do; empty if it is to correct the code."""
        self.raised = raised
        """The exception of a user's code, if that is why."""


def environment_factory(spec: str, arguments: Mapping[str, Any]) -> EnvironmentFactory:
    """Return what makes the environment of each episode.

    `spec`: a registered name, or FILE.py:NAME of a class or a function that returns an
    Environment or an environment of TRL, or of a dictionary of such for TRL. `arguments`: keyword
    arguments; of an environment of TRL, `reward_funcs` names reward functions of its file. Raises
    EnvironmentSpecError.
    """
    made, module = registry.registered(spec), None
    if made is None:
        path, _, name = spec.rpartition(":")
        try:
            module = load_module(Path(path))
        except RewardFileError as error:
            raise EnvironmentSpecError(error.problem, error.raised, remedy=error.remedy) from error
        made = getattr(module, name, None)
        if not callable(made) and not isinstance(made, Mapping):
            raise EnvironmentSpecError(
                f"'{spec}' is not an environment: {path} has no class {name}"
                + (f": {offered(name, module)}" if name.isidentifier() else "")
            )
    try:
        if isinstance(made, Mapping) or is_trl(made):
            return _of_trl(module, made, dict(arguments))
        factory = partial(made, **arguments)
        with trial(factory) as first:
            if not isinstance(made, type) and (isinstance(first, Environment) or is_trl(first)):
                _check_is_new(spec, made, factory, first)
            if is_trl(first):
                return _of_trl(module, made, dict(arguments))
            kind = type(first)
    except EnvironmentSpecError:
        raise
    except (Exception, SystemExit) as error:  # the latter would end the run, with 0 too
        raised = Raised.of(error, made)
        sentence = f"--environment {spec} cannot be made: {raised}"
        raise EnvironmentSpecError(sentence, raised) from error
    if not issubclass(kind, Environment):
        raise EnvironmentSpecError(
            f"--environment {spec} makes no environment, but {kind.__name__}. Wanted is a subclass "
            "of rollcall.Environment, or an environment of TRL with `reset`"
        )
    _check_names(spec, kind)
    return factory


def begin(spec: str, chat: Chat, tools: Sequence[ToolSpec]) -> None:
    """Raise EnvironmentSpecError if the policy cannot be shown the tools of the environment."""
    try:
        chat.begin(({"role": "user", "content": "question"},), tools)
    except ChatError as error:
        problem = f"--environment {spec}: {error.problem}"
        raise EnvironmentSpecError(problem, remedy=error.remedy) from error


@contextmanager
def trial(factory: Callable[[], Any]) -> Iterator[Any]:
    """Yield what a factory makes, which runs no episode, and close it if it is an Environment."""
    made = factory()
    try:
        yield made
    finally:
        if isinstance(made, Environment):
            # This thread may run an event loop, as a notebook's does; and a close may hang.
            closing = threading.Thread(target=asyncio.run, args=(close(made),), daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS + 1)


def _check_is_new(spec: str, made: Any, factory: Callable[[], Any], first: object) -> None:
    """Raise EnvironmentSpecError if all episodes would share an object."""
    with trial(factory) as second:
        if second is first:
            error = EnvironmentSpecError("the factory gives the same object twice")
            raised = Raised.of(error, made)
            remedy = "Make a new one in each call: each episode has its own object"
            raise EnvironmentSpecError(f"--environment {spec}: {raised}", raised, remedy=remedy)


def _check_names(spec: str, kind: type[Environment]) -> None:
    """Raise EnvironmentSpecError for a name that is misspelt, so that nothing reads it."""
    for name, one in vars(kind).items():
        if inspect.iscoroutinefunction(one):
            what, known = "a method", tuple(METHODS)
        elif isinstance(one, list | tuple):
            what, known = "an attribute", ATTRIBUTES
        else:
            continue
        swapped = [meant for meant in known if sorted(meant) == sorted(name)]
        (meant,) = difflib.get_close_matches(name, known, 1, ALIKE) or swapped or [name]
        if meant != name and getattr(kind, meant) is getattr(Environment, meant):
            error = EnvironmentSpecError(f"has {what} `{name}` and no `{meant}`")
            raised = Raised.of(error, one if callable(one) else kind)
            raise EnvironmentSpecError(f"--environment {spec} {raised}", raised)


def _of_trl(module: object, made: Any, arguments: dict[str, Any]) -> EnvironmentFactory:
    names: Sequence[str] = arguments.pop("reward_funcs", ())
    rewards: dict[str, Any] = {name: getattr(module, name, None) for name in names}
    if missing := [name for name, function in rewards.items() if not callable(function)]:
        raise EnvironmentSpecError(f"reward_funcs: the file has no function {missing[0]}")
    several = made if isinstance(made, Mapping) else {None: made}
    makers = {name: partial(make, **arguments) for name, make in several.items()}
    return trl_factory(makers, rewards)


def verifiers_attempt(
    spec: str, arguments: Mapping[str, Any], chat: Chat, limits: Limits
) -> Attempt:
    """Return attempts by an environment of verifiers. Raises EnvironmentSpecError."""
    try:
        # An optional package, which imports for seconds.
        from env.environments.verifiers_environment import VerifiersAttempt, load, tools_of

        environment = load(spec.removeprefix(PREFIX), arguments)
        begin(spec, chat, tools_of(environment))
    except EnvironmentSpecError:
        raise
    except (Exception, SystemExit) as error:
        raised = Raised.of(error)
        sentence = f"--environment {spec} cannot be made: {raised}"
        raise EnvironmentSpecError(sentence, raised) from error
    return VerifiersAttempt(environment, chat, limits)


def agent_attempt(
    path: Path, codec: TextCodec, limits: Limits, *, temperature: float, top_p: float
) -> Attempt:
    """Return attempts by the AgentExecutor of an agent file. Raises EnvironmentSpecError."""
    try:
        executor = load_agent(path)
    except RewardFileError as error:
        raise EnvironmentSpecError(error.problem, error.raised, remedy=error.remedy) from error
    sampling = SamplingParams(limits.reply, temperature, top_p)
    return AgentAttempt(executor, codec.tokenizer, limits, sampling, codec.ends)
