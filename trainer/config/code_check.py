"""Runs a user's reward function on the first rows, before anything is started. Torch-free.

`plan` and `up` start it in a process of its own (`in_process`), since a user's code may hang, print
or end its process. What it finds is a `Tried` for each completion and a `Trouble` for each fault.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from contract.durations import counted
from contract.launch import distribution
from contract.launch.busy import busy
from contract.launch.programs import Program
from contract.redaction import redact, secret_texts
from env.data.columns import ANSWER_COLUMNS
from env.images.rows import texts_of
from env.types import IN_PYTHON, Prompt, RewardFunction, RewardRequest, brief, finite
from env.user_code import Cause, Raised, defined_at, same_fault
from env.verifiers_package import PREFIX
from trainer.config import (
    code_findings,
    label_check,
    missing_return,
    own_functions,
    reward_models,
)
from trainer.config.code_findings import CodeCheck, Found, Tried, Trouble, of, read
from trainer.config.config import Config

PACKAGES = ("PIL", "datasets", "numpy", "pyarrow", "transformers")
"""Of the extra `eval`: what reads the rows and runs the code."""
ROWS = 4
"""Rows of the data that are tried."""
SECONDS = 30.0
"""Longest time for all of a user's code."""
TOLD_SECONDS = 2.0
"""Time after which it is told that the code still runs."""
PRINTED = 3
"""Lines of the code's own output that are shown."""
BEGIN_SECONDS = 120.0
"""Longest time until the process begins with the user's code."""
GRACE_SECONDS = 5.0
"""Time for the process to say where it hangs, before it is ended."""
OTHER_FORM = re.compile(r"string indices|expected string|'(list|str|dict)' object|\bnot \"?list")
"""Begins what Python says of a text that is taken for messages, or the other way round."""
NONSENSE = "qwertz 0x7 qwertz"
"""A completion that answers nothing."""
SPELLINGS = (
    "#### {}",
    "\\boxed{{{}}}",
    "<answer>{}</answer>",
    "The answer is {}",
    "<think>\n\n</think>\n<answer>\n{}\n</answer>",
)
"""How completions commonly give an answer: a reward may want one of them."""


def environment_of(config: Config) -> str:
    """Return the flag and its value of an environment that is a user's code; "" if it is none."""
    episodes = config.episodes
    if episodes.agent_func_path:
        return f"--agent_func_path {episodes.agent_func_path}"
    spec = episodes.environment
    is_users = ".py:" in spec or spec.startswith(PREFIX) or spec == IN_PYTHON
    return f"--environment {spec}" if is_users else ""


def formulas_of(config: Config) -> tuple[str, str]:
    """Return the flags of a user's loss and estimator with values; "" for one of the table."""
    return (
        own_functions.flag_of("--policy_loss_type", config.loss.policy_loss_type),
        own_functions.flag_of("--advantage_estimator", config.advantage.estimator),
    )


def rewards_of(config: Config) -> list[str]:
    """Return the rewards that are a user's functions. Raises RewardSpecError."""
    from env.registry import Kind, parts  # imports an HTTP client: --help does not

    return [text for text, kind in parts(config.reward_spec).items() if kind is Kind.CODE]


def is_in_python(config: Config) -> bool:
    """Return whether reward or environment is an object of this process."""
    return IN_PYTHON in (*rewards_of(config), config.episodes.environment)


TryEnvironment = Callable[[Config, Sequence[Prompt]], Iterable[Found]]
"""Plays an episode on the first rows. It needs torch, which is not imported here."""


def here(
    config: Config, prompts: Sequence[Prompt], environment: TryEnvironment | None = None
) -> CodeCheck:
    """Return what rewards and environment give if one is an object of this process.

    `environment`: tries it; None: it is not tried.
    """
    logger = logging.getLogger("env.rewards.guard")  # which writes each exception's stack
    logger.disabled = True
    try:
        found = [*try_rewards(config, prompts)]
    finally:
        logger.disabled = False
    if environment and environment_of(config):
        found += environment(config, prompts)
    return of(found)


def try_rewards(config: Config, prompts: Sequence[Prompt]) -> Iterator[Found]:
    """Yield what a user's reward functions give for the first rows. Without rows: load them."""
    from env.registry import RewardSpecError, reward_function

    for spec in rewards_of(config):
        flag = f"{config.reward_flag_name} {spec}"
        try:
            reward = reward_function(spec)
            flag = _in_python(reward) if spec == IN_PYTHON else flag
        except RewardSpecError as error:
            yield unloaded(flag, error)
            continue
        if not prompts:
            problem = f"it was loaded and not run: no row of {config.prompt_data} is on this disk"
            yield Trouble(flag, problem, refuses=False)
        yield from _scored(flag, spec, reward, prompts[:ROWS])


def _in_python(reward: RewardFunction) -> str:
    """Return how messages name a reward of this process: by its function, unless it is a sum."""
    code = _code_of(reward)
    if not defined_at(code)[0]:
        return code_findings.REWARDS_OF_PYTHON
    return f"{code_findings.REWARD_OF_PYTHON}{getattr(code, '__name__', type(code).__name__)}"


def _code_of(reward: RewardFunction) -> object:
    """Return the user's function behind a reward, or what sums several."""
    found = inspect.unwrap(reward)
    return getattr(found, "code", found)


def combination_of(config: Config) -> str:
    """Return the flag and its value if a file of the user's combines reward models; else ""."""
    is_users = config.has_reward_model and config.reward_combine.endswith(".py")
    return f"--reward_combine {config.reward_combine}" if is_users else ""


def try_combination(config: Config) -> Iterator[Trouble]:
    """Yield why the user's combination of reward models makes no reward of theirs."""
    flag, rewards = combination_of(config), [0.5] * len(reward_models.names(config))
    if not flag:
        return
    try:
        combine = reward_models.combination(config.reward_combine)
        combined = combine(rewards)
    except (Exception, SystemExit) as error:
        yield failed(flag, Raised.of(error), f"for the rewards {rewards}")
        return
    if finite(combined) is None:
        problem = f"it gave {brief(combined)} for the rewards {rewards}, where a number is wanted"
        yield Trouble(flag, problem, ":".join(map(str, defined_at(combine))))


class LoadError(Protocol):
    """Why a reward or an environment cannot be loaded."""

    problem: str
    remedy: str
    raised: Raised | None


def unloaded(flag: str, error: LoadError) -> Trouble:
    """Return why a user's code cannot be loaded."""
    raised = error.raised
    away = raised is not None and raised.cause is Cause.OUTAGE
    place = raised.place if raised else ""
    problem = shown(_of_file(flag, error.problem))
    place = place or _file_in(flag)
    trouble = Trouble(flag, problem, place, refuses=not away, remedy=error.remedy)
    return _of_machine(trouble, raised) if raised else trouble


def _file_in(flag: str) -> str:
    """Return the file of code that a flag's value names; "" if it names none."""
    file, python, _ = flag.partition(" ")[2].partition(".py")
    return file + python if python else ""


def _of_file(flag: str, problem: str) -> str:
    """Return a problem without its flag and file, which are before it already."""
    problem = problem.removeprefix(f"{Path(_file_in(flag))}: ").removeprefix(flag)
    return problem.removeprefix(":").lstrip()


def failed(flag: str, raised: Raised, when: str) -> Trouble:
    """Return a fault for what a user's code raised each time; a warning if a server is away.

    `when`: "for each of the first 4 rows".
    """
    problem = f"{when} it fails: {shown(str(raised))}"
    refuses = raised.cause is not Cause.OUTAGE
    return _of_machine(Trouble(flag, problem, raised.place, refuses), raised)


def _of_machine(trouble: Trouble, raised: Raised) -> Trouble:
    return replace(trouble, package=raised.package, of_here=raised.of_here)


def shown(text: str) -> str:
    """Return a text of a user's code without the secrets of this process's environment."""
    return redact(text, secret_texts(os.environ))


def answer_of(prompt: Prompt) -> str:
    """Return the row's answer as a completion: its label, else a column that looks like one."""
    if prompt.label is not None:
        return prompt.label
    named = [prompt.columns[name] for name in ANSWER_COLUMNS if name in prompt.columns]
    return next(
        (one if isinstance(one, str) else json.dumps(one, default=str) for one in named), ""
    )


def request(prompt: Prompt, completion: str) -> RewardRequest:
    """Return what a run would ask about a completion; its bytes stand for its tokens."""
    return RewardRequest(
        prompt.text + completion,
        prompt.text,
        prompt.label,
        prompt.messages and texts_of(prompt.messages),
        prompt.columns,
        tuple(completion.encode(errors="replace")),
    )


def _scored(
    flag: str, spec: str, reward: RewardFunction, prompts: Sequence[Prompt]
) -> Iterator[Found]:
    """Yield the scores of each row's answer and of nonsense, and what is wrong with them."""
    errors: list[str] = []
    scored: list[float | None] = []
    impossible = 0
    rows = f"the first {counted(len(prompts), 'row')}"
    for completions, named in (
        ([answer_of(prompt) for prompt in prompts], "with the row's answer"),
        ([NONSENSE] * len(prompts), f"with the completion {NONSENSE!r}"),
    ):
        asked = [request(*one) for one in zip(prompts, completions, strict=True)]
        scores = reward(asked) if asked else []
        together = same_fault([score.raised for score in scores])
        if together is not None:  # of one call for all, so each row is asked alone
            scores = [score for one in asked for score in reward([one])]
        raised = [score.raised for score in scores]
        if same := same_fault(raised):
            trouble = failed(flag, same, f"for each of {rows}, {named},")
            yield replace(trouble, problem=trouble.problem + _form(reward, prompts, same))
            return  # nonsense would add nothing
        some = next(filter(None, raised), None)
        if together is not None and some is None:
            yield failed(flag, together, f"for {rows} in one call, {named},")
            return
        if some is not None:
            count = sum(one is not None for one in raised)
            said = f"{shown(str(some))} for {count} of {len(prompts)} rows, {named}"
            alone = "such a completion has no score"
            effect = "a batch with one such completion has no scores" if together else alone
            yield Trouble(flag, f"{said}: {effect}", some.place, refuses=False)
        for prompt, text, score in zip(prompts, completions, scores, strict=True):
            value = score.reward if score.ok else None
            yield Tried(spec, prompt.index + 1, shown(text), value)
            scored.append(value)
            errors += [score.error] if not (score.ok or score.raised) else []
            impossible += score.not_finite
    if prompts and len(errors) == 2 * len(prompts):
        file, line = defined_at(_code_of(reward))
        place = f" ({file}:{line})" if file else ""
        problem = f"it scores none of {rows}: {shown(errors[0])}{place}"
        # None says that it does not judge a completion. A label that is an object may be the cause:
        # the check of the labels says so.
        refuses = impossible == len(errors) and not label_check.parts(prompts[0].label)
        lacking = missing_return.found(Path(file), line) if file and not impossible else None
        if lacking is not None:
            name, line = lacking
            question = f"is a `return` missing in {name} ({file}:{line})?"
            problem = f"it scores none of {rows}: {shown(errors[0])}: {question}"
            refuses = True
        if not refuses:
            problem += ". Samples without a score are left out of the training: return a number"
        yield Trouble(flag, problem, f"{file}:{line}" if file else "", refuses)
    elif all(map(answer_of, prompts)) and len(set(scored)) == 1 and scored[0] is not None:
        if others := _scored_otherwise(spec, reward, prompts, scored[0]):
            yield from others
            return
        also = f"also as {SPELLINGS[0].format('A')!r} or {SPELLINGS[1].format('A')}"
        problem = (
            f"it gives {scored[0]:g} for each row's answer ({also}) and for {NONSENSE!r} alike. If "
            "it gives every completion the same, the policy learns nothing"
        )
        yield Trouble(flag, problem, refuses=False)


def _form(reward: RewardFunction, prompts: Sequence[Prompt], raised: Raised) -> str:
    """Return what a function of TRL's kind gets as a completion, if it takes that for another."""
    from env.registry import is_trl

    if not (is_trl(reward) and OTHER_FORM.search(str(raised))):
        return ""
    text, chat = "a text", "a list with one message"
    if prompts[0].messages is None:
        return f". A completion is {text} here, and with --apply_chat_template {chat}"
    return f". A completion is {chat} here, and without --apply_chat_template {text}"


def _scored_otherwise(
    spec: str, reward: RewardFunction, prompts: Sequence[Prompt], score: float
) -> list[Tried]:
    """Return the trial of the first spelling of the answers that has another score than `score`."""
    for spelling in SPELLINGS:
        answers = (answer_of(prompt).rpartition("####")[2].strip() for prompt in prompts)
        completions = [spelling.format(answer) for answer in answers]
        scores = reward([request(*one) for one in zip(prompts, completions, strict=True)])
        values = [one.reward if one.ok else None for one in scores]
        if any(value not in (score, None) for value in values):
            return [
                Tried(spec, prompt.index + 1, shown(text), value)
                for prompt, text, value in zip(prompts, completions, values, strict=True)
            ]
    return []


def in_process(
    config: Config,
    words: Sequence[str],
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda _: None,
) -> CodeCheck:
    """Run a user's rewards, environment, loss and estimator in a process of their own.

    `words`: the flags of `config`. A run without such code starts no process. Code that has not
    ended after `seconds` is a warning, which names its line. `tell` gets a sentence before, if it
    takes long.
    """
    environment = environment_of(config)
    own_reward = config.reward_flag if rewards_of(config) else ""
    flags = [own_reward, combination_of(config), environment, *formulas_of(config)]
    if not any(flags):
        return CodeCheck()
    flag = next(filter(None, flags))
    if broken := list(_not_python(config)):  # found at once, however busy the machine is
        return of(broken)
    if not_tried := _lacking(with_torch=any(formulas_of(config))):
        return of([Trouble(flag, not_tried, refuses=False)])
    with tempfile.TemporaryDirectory(prefix="rollcall-code-") as made:
        results, output = Path(made) / "found.jsonl", Path(made) / "output"
        printed = Path(made) / "printed"
        argv = [sys.executable, "-P", "-m", Program.TRY_CODE, str(results), f"{seconds:g}", *words]
        with output.open("wb") as log, printed.open("wb") as prints:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=prints, stderr=log, start_new_session=True
            )
            told = min(TOLD_SECONDS, seconds)
            try:
                code: int | None = _waited(process, told)
                if code is None:
                    tell(f"waiting for {flag} on the first {ROWS} rows, at most {seconds:g} s")
                    _wait_for_begin(process, results)
                    code = _waited(process, seconds + GRACE_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with all that the code has started
                process.wait()
        found = read(results)
        if not found or found[-1] is not None:
            last = _lines(output) or _lines(printed)
            found.append(_unfinished(flag, code, seconds, last[-1:]))
        lines = tuple(map(shown, _lines(printed)[:PRINTED]))
    return replace(of([one for one in found if one is not None]), printed=lines)


def _not_python(config: Config) -> Iterator[Trouble]:
    """Yield the user's reward files that are not Python code."""
    from env.rewards.python_file import RewardFileError, check_syntax

    for spec in rewards_of(config):
        try:
            check_syntax(Path(spec[: spec.rfind(".py") + len(".py")]))
        except RewardFileError as error:
            yield unloaded(f"{config.reward_flag_name} {spec}", error)


def _wait_for_begin(process: subprocess.Popen[bytes], results: Path) -> None:
    """Wait until the process has imported its packages and opens its file: no code of the user's.

    On a busy machine that takes longer than the code.
    """
    end = time.monotonic() + BEGIN_SECONDS
    while not results.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a process; None if it has not ended after `seconds`."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def while_busy() -> str:
    """Return what else may be the cause of a slow trial; "" if this machine is not busy."""
    return f"; {told}, so the code may not be the cause" if (told := busy()) else ""


def _lines(file: Path) -> Sequence[str]:
    return file.read_text(errors="replace").strip().splitlines()


def _lacking(*, with_torch: bool) -> str:
    """A sentence if packages that the code is run with are not installed; "" if all are."""
    packages = {"eval": PACKAGES, "trainer": ("torch",) if with_torch else ()}
    missing = {name: extra for extra in packages for name in packages[extra] if not find_spec(name)}
    if not missing:
        return ""
    return (
        f"it was not tried: {', '.join(missing)} not installed here; "
        f"`{distribution.install(list(missing.values())[-1])}` brings all that it needs"
    )


def _unfinished(flag: str, code: int | None, seconds: float, lines: Sequence[str]) -> Trouble:
    if code is None:
        return Trouble(flag, f"it has not ended after {seconds:g} s{while_busy()}", refuses=False)
    last = f". Its last line: {shown(lines[-1])}" if lines else ""
    ended = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    is_killed = code == -signal.SIGKILL  # by the kernel, for its memory, or by a person
    problem = f"its process was ended {ended}{last}"
    return Trouble(flag, problem, refuses=not is_killed, of_here=code < 0)
