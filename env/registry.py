"""From what a user writes after `--remote_rm_url` or `--reward` to a reward function."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from env.http.client import RemoteReward, RewardRejected, RewardUnreachable, Tell, warn
from env.http.known_servers import KNOWN
from env.http.post import shown
from env.rewards import (
    arithmetic,
    choice,
    code,
    form,
    gsm8k,
    judge,
    length,
    mathematics,
    mathvista,
    question_answering,
)
from env.rewards.guard import guard, guard_each, with_labels
from env.rewards.python_file import (
    FileReward,
    RewardFileError,
    RewardKind,
    kind_of,
    load_callable,
    load_reward_file,
)
from env.rewards.trl_function import TrlReward
from env.rewards.verl_function import VerlReward
from env.rewards.weighted import WeightedReward, named
from env.types import IN_PYTHON, RewardFunction
from env.user_code import FUNCTION, Raised

__all__ = [
    "IN_PYTHON",
    "REWARDS",
    "Kind",
    "RewardRejected",
    "RewardSpecError",
    "RewardUnreachable",
    "given_in_python",
    "keep_servers_in",
    "parts",
    "pure_reward",
    "reward_function",
]


@dataclass(frozen=True, slots=True)
class Registered:
    """A reward of this package."""

    make: Callable[..., RewardFunction]
    """Takes the reward's options. Raises ValueError if one is wrong."""
    pure: bool = True
    """Whether it neither asks a server nor runs what a policy wrote."""
    reads_label: bool = True


def _plain(reward: RewardFunction) -> Registered:
    return Registered(lambda: reward)


REWARDS: dict[str, Registered] = {
    "arithmetic": _plain(arithmetic.exact),
    "arithmetic-partial": _plain(arithmetic.partial),
    "gsm8k": _plain(gsm8k.score),
    "math": Registered(mathematics.boxed),
    "math-exact": _plain(mathematics.exact),
    "math-verify": Registered(mathematics.anywhere),
    "mathvista": _plain(mathvista.score),
    "choice": _plain(choice.score),
    "code": Registered(code.make, pure=False),
    "exact-match": _plain(question_answering.exact_match),
    "f1": _plain(question_answering.f1),
    "format": Registered(form.make, reads_label=False),
    "judge": Registered(judge.make, pure=False),
    "length": Registered(length.make, reads_label=False),
}
WEIGHED = re.compile(
    r"(?P<spec>.+):(?P<weight>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.DOTALL
)
NAMED = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)(?:\?(?P<options>.*))?", re.DOTALL)


ADDRESS = re.compile(r"[^\s\"'{}()]+")
"""What may be an address whose scheme is missing."""


class RewardSpecError(ValueError):
    """Not the name of a reward; the message says what would be."""

    def __init__(self, problem: str, raised: Raised | None = None, *, remedy: str = "") -> None:
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        """What to do; empty if `problem` says all."""
        self.raised = raised
        """The exception of a user's file, if that is why."""


def reward_function(
    spec: str | Sequence[str],
    *,
    timeout: float = 30.0,
    deadline: float = 600.0,
    tell: Tell = warn,
) -> RewardFunction:
    """The reward function that `spec` names.

    `spec`: one URL or several with commas between, the path of a `.py` file with
    `reward_func(queries, prompts, labels)`, FILE.py:NAME of a function of TRL's kind
    (`NAME(completions, **columns)`) or verl's, or a name in REWARDS, with options as in a URL:
    `length?free=500&most=1000`. Several such texts, each with `:WEIGHT` at its end, are the sum of
    their rewards. `timeout`, `deadline` (seconds, a try and all tries together) and `tell` (what is
    waited for, in a sentence) hold for URLs. Raises RewardSpecError.
    """
    if not isinstance(spec, str):
        return WeightedReward(
            named(
                [
                    (
                        _short_name(one),
                        weight,
                        reward_function(one, timeout=timeout, deadline=deadline, tell=tell),
                    )
                    for one, weight in map(_weighed, spec)
                ]
            )
        )
    spec = spec.strip()
    try:
        if (name := NAMED.fullmatch(spec)) and name["name"] in REWARDS:
            return _registered(name["name"], name["options"])
        if "://" in spec:
            urls = [url.strip() for url in spec.split(",") if url.strip()]
            return RemoteReward(urls, timeout=timeout, deadline=deadline, tell=tell)
        if function := FUNCTION.fullmatch(spec):
            return guard(_in_file(Path(function["file"]), function["name"]))
        if spec.endswith(".py"):
            return guard(load_reward_file(Path(spec)))
    except RewardFileError as error:
        raise RewardSpecError(error.problem, error.raised, remedy=error.remedy) from error
    except RewardSpecError:
        raise
    except ValueError as error:
        raise RewardSpecError(str(error)) from error
    raise _unknown(spec)


def keep_servers_in(file: Path) -> None:
    """Keep in a file of the run which servers have answered: later refusals of them are outages."""
    KNOWN.keep_in(file)


@contextmanager
def given_in_python(reward: Callable[..., Any] | Sequence[Any]) -> Iterator[str]:
    """Give functions of this process the name IN_PYTHON among the rewards, in the block.

    Several are summed, as TRL sums its `reward_funcs`. A text among them is a spec, with
    `:WEIGHT` or without.
    """
    if callable(reward):
        made = guard(_adapted(reward))
    else:
        made = WeightedReward(named([_part(one) for one in reward]))
    REWARDS[IN_PYTHON] = Registered(lambda: made, pure=False, reads_label=False)
    try:
        yield IN_PYTHON
    finally:
        del REWARDS[IN_PYTHON]


def _part(one: str | Callable[..., Any]) -> tuple[str, float, RewardFunction]:
    """Return the name, the weight and the reward of a part of a sum."""
    if isinstance(one, str):
        spec, weight = _weighed(one)
        return _short_name(spec), weight, reward_function(spec)
    name = getattr(one, "__name__", type(one).__name__).strip("<>")  # of <lambda>
    return name, 1.0, guard(_adapted(one))


def _adapted(function: Callable[..., Any]) -> RewardFunction:
    """Return a function of this process as a RewardFunction; the others take requests."""
    return _of_known_kind(function) or function


def is_trl(reward: RewardFunction) -> bool:
    """Return whether a reward is a function of TRL's kind, which gets texts or messages."""
    return isinstance(inspect.unwrap(reward), TrlReward)


def _in_file(path: Path, name: str) -> RewardFunction:
    """Return a file's function as a RewardFunction; one of no known kind is of TRL's.

    Raises RewardFileError.
    """
    function = load_callable(path, name, "(completions, **columns)")
    return _of_known_kind(function) or TrlReward(function)


def _of_known_kind(function: Callable[..., Any]) -> RewardFunction | None:
    """Return the function's adapter; None if its parameters do not say whose kind it is."""
    kind = kind_of(function)
    return ADAPTERS[kind](function) if kind else None


ADAPTERS: Mapping[RewardKind, Callable[[Callable[..., Any]], RewardFunction]] = {
    RewardKind.TRL: TrlReward,
    RewardKind.VERL: VerlReward,
    RewardKind.OPENRLHF: FileReward,
}


class Kind(StrEnum):
    """What a call of a reward reaches."""

    PURE = "pure"
    """A reward of this package that asks no server and runs no code."""
    CODE = "code"
    """A function of the user's."""
    SERVICE = "service"
    """A server, or programs that a policy wrote."""


def parts(spec: str | Sequence[str]) -> dict[str, Kind]:
    """Map each reward of a sum to its kind, without loading one. Raises RewardSpecError."""
    texts = [spec] if isinstance(spec, str) else [one for one, _ in map(_weighed, spec)]
    return {text.strip(): _kind(text.strip()) for text in texts if text}


def pure_reward(spec: str | Sequence[str]) -> RewardFunction | None:
    """The reward of this package, or the sum of such, that asks no server and runs no code.

    None for any other `spec`. Raises RewardSpecError.
    """
    kinds = parts(spec).values()
    return reward_function(spec) if kinds and set(kinds) == {Kind.PURE} else None


def _kind(text: str) -> Kind:
    name = NAMED.fullmatch(text)
    if known := REWARDS.get(name["name"]) if name else None:
        return Kind.PURE if known.pure else Kind.CODE if text == IN_PYTHON else Kind.SERVICE
    if "://" in text:
        return Kind.SERVICE
    if text.endswith(".py") or FUNCTION.fullmatch(text):
        return Kind.CODE
    raise _unknown(text)


def _weighed(text: str) -> tuple[str, float]:
    """A reward's text and its weight; 1 if it has none. Raises RewardSpecError."""
    found = WEIGHED.fullmatch(text.strip())
    if found is None or _ends_in_host(found["spec"]):
        return text.strip(), 1.0
    weight = float(found["weight"])
    if not math.isfinite(weight):
        raise RewardSpecError(f"{shown(found['spec'])}: its weight {found['weight']} is infinite")
    return found["spec"], weight


def _ends_in_host(spec: str) -> bool:
    """Whether a number behind `spec` is a port, as in `http://host:5000`."""
    _, scheme, rest = spec.rpartition("://")
    return bool(scheme) and not re.search("[/&:]", re.sub(r"\[.*?\]", "", rest))


def _short_name(spec: str) -> str:
    """The reward's name among the metrics."""
    if "://" in spec and not NAMED.fullmatch(spec):
        return "server"
    if function := FUNCTION.fullmatch(spec):
        return function["name"]
    name = Path(spec).stem if spec.endswith(".py") else spec.partition("?")[0]
    return name.replace("-", "_")


def _registered(name: str, options: str | None) -> RewardFunction:
    registered = REWARDS[name]
    known = inspect.signature(registered.make).parameters
    given = {}
    # A plus stays one, as in a regular expression; %2B is one too.
    for key, text in parse_qsl((options or "").replace("+", "%2B"), keep_blank_values=True):
        if key not in known:
            names = ", ".join(known) or "none"
            problem = f"the reward '{name}' has no option '{key}'; it has: {names}"
            near = difflib.get_close_matches(key, known, n=1)
            otherwise = "Give one of these" if known else "Leave it out"
            remedy = f"Did you mean '{near[0]}'?" if near else otherwise
            raise RewardSpecError(problem, remedy=remedy)
        given[key] = _converted(name, key, text, known[key].default)
    reward = guard_each(registered.make(**given), (RewardUnreachable, RewardRejected))
    return with_labels(reward) if registered.reads_label else reward


def _converted(name: str, key: str, text: str, default: object) -> Any:
    """`text` as a value of the default's type. Raises RewardSpecError."""
    kind = type(default) if isinstance(default, int | float) else str
    wanted = {int: "a whole number", float: "a number", str: "a text"}[kind]
    try:
        value = kind(text)
        if not isinstance(value, float) or math.isfinite(value):
            return value
    except ValueError:
        pass
    raise RewardSpecError(f"{name}: {key} is '{text}', where {wanted} is wanted")


def _unknown(spec: str) -> RewardSpecError:
    """Return the error of a text that is neither a name nor a place of a reward."""
    name, text = spec.partition("?")[0], shown(spec)
    if ".py:" in name:
        problem = f"'{text}' is not FILE.py:NAME"
        return RewardSpecError(problem, remedy="Give the name of a function in the file")
    known, _, weight = name.rpartition(":")
    if known in REWARDS:
        problem = f"'{text}': the weight '{weight}' is not a number"
        return RewardSpecError(problem, remedy=f"Give one, as in '{known}:0.5'")
    if ("/" in name or ":" in name) and ADDRESS.fullmatch(spec):
        problem = f"'{text}' is not a URL and no .py file"
        return RewardSpecError(problem, remedy=f"Did you mean 'http://{text}'?")
    near = difflib.get_close_matches(name, REWARDS, n=1)
    return RewardSpecError(
        f"'{shown(name)}' is not a URL, no .py file and none of the rewards",
        remedy=f"Did you mean '{near[0]}'?" if near else f"Give one of {', '.join(REWARDS)}",
    )
