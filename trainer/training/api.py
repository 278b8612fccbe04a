"""Training from a Python program: `from rollcall import train`."""

from __future__ import annotations

import difflib
import json
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeAlias

from contract.durations import counted
from contract.exit_codes import ExitCode
from contract.files.os_errors import explain
from contract.options import ConfigError, Fault
from contract.progress import Progress
from contract.run_dir import RunFiles
from env.environments.environment_file_check import blocking_of
from trainer.config.config import Config
from trainer.config.job_checks import finished_steps, missing_packages
from trainer.config.parse import parse_all
from trainer.config.whole_job import start_faults, try_code
from trainer.metrics.callbacks import Callback, CallbackError, faults
from trainer.training import finished, python_arguments
from trainer.training.python_arguments import to_words

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from env.episodes.environment import Environment
    from env.types import Prompt, RewardFunction
    from trainer.checkpoint.writer import RunState
    from trainer.config.code_findings import Found

    Reward: TypeAlias = str | RewardFunction | Callable[..., Any]


NOTHING_TRAINED = (
    "the run in {run} had {steps}, and that is all that this call asks for. Nothing was "
    "trained: the result is of the earlier flags and reward. Give another run_dir, or more steps"
)
PLOTTED = ("train/reward", "eval/accuracy")


class RunError(RuntimeError):
    """The run did not finish. Its text says why, and what would be right."""

    def __init__(self, sentence: str, exit_code: ExitCode) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        """The exit code that `python -m trainer` would have ended with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished run."""

    steps: int
    samples: int
    """Completions that the policy was trained on."""
    reward_first: float | None
    """Mean reward of the first step."""
    reward_last: float | None
    eval_before: float | None
    """Held-out accuracy before the first step, 0 to 1; None without held-out prompts."""
    eval_after: float | None
    """That of the newest step that was evaluated; None if none was."""
    run_dir: Path
    model: Path
    """The directory of the final model."""

    def metrics(self) -> list[dict[str, float]]:
        """Return a row for each step, in order: `step`, and its metrics. Raises OSError.

        A step that was repeated after a loss has the values of its last time.
        """
        rows: dict[int, dict[str, float]] = {}
        for line in RunFiles(self.run_dir).metrics.read_text().splitlines():
            row = json.loads(line)
            rows[row["step"]] = rows.get(row["step"], {}) | row
        return [rows[step] for step in sorted(rows)]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the metrics, with a row for each step and a column for each metric."""
        import pandas

        return pandas.DataFrame(self.metrics()).set_index("step")

    def plot(self, *names: str) -> Figure:
        """Return matplotlib's figure of these metrics over the steps, which a notebook shows.

        By default the reward, and the held-out accuracy if there is one.
        """
        from trainer.training.curve import Curve

        rows = self.metrics()
        figure = Curve(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name in names or PLOTTED:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if names and not points:
                raise KeyError(_no_metric(name, {key for row in rows for key in row}))
            if points:
                axes.plot(*zip(*points, strict=True), ".-", label=name)
        axes.set(xlabel="step")
        axes.legend()
        return figure


def train(
    *values: Never,
    reward: Reward | Sequence[Reward] | None = None,
    environment: str | Callable[..., Environment] | None = None,
    callbacks: Sequence[Callback] = (),
    **flags: object,
) -> Result:
    """Train a policy, from the newest checkpoint of the run directory to the last step.

    `flags`: the flags of `python -m trainer`, without dashes. True and False are switches, a
    sequence is several values, a mapping is JSON, and None leaves a flag out. `config` names a file
    of flags. `reward` and `environment`: as the flags name them, or an object of this process: a
    function that scores, and a class or a function that makes an environment. A function takes what
    TRL's take (`completions`, columns), what OpenRLHF's take (`queries`, `prompts`, `labels`), or
    requests; several are summed. `callbacks`: called after steps, checkpoints and evaluations.

    `prompt_data` and `eval_dataset` may be rows: a list of dictionaries, a datasets.Dataset or a
    DataFrame.

    Trains in the Ray that this process is in, else in that of RAY_ADDRESS, else in a local one,
    which ends with the run. Raises ConfigError for wrong arguments and for what they name, with
    all faults; CallbackError if a callback raises; RunError for any other error that a user can
    fix.
    """
    if values:
        raise TypeError("train takes keywords, such as pretrain='data/model'")
    state = None
    with ExitStack() as stack:
        words, config = _checked(stack, reward, environment, callbacks, flags)
        if told := finished.of(config):
            _warn_of_nothing(config, told.step)
            return _result(config, told)
        from trainer.training import run, standalone  # they import torch

        stack.enter_context(_ray_as_before())
        before = finished_steps(config)
        try:
            with standalone.recorded(config, words):
                state = run.run(config, callbacks, python_arguments.in_python)
        except CallbackError:
            raise
        except KeyboardInterrupt:  # raised again below, without the frames of Ray
            pass
        except Exception as error:
            if (code := run.exit_code(error)) is not None:
                raise _of_run(error, code) from error
            if isinstance(error, OSError) and config.has(error.filename):
                raise _of_disk(error) from error
            raise
    if state is None:
        print(_interrupted(config), file=sys.stderr, flush=True)
        raise KeyboardInterrupt
    if state.step == before > 0:
        _warn_of_nothing(config, before)
    return _result(config, state)


def _result(config: Config, told: Progress | RunState) -> Result:
    return Result(
        steps=told.step,
        samples=told.samples,
        reward_first=told.reward_first,
        reward_last=told.reward,
        eval_before=told.eval_before,
        eval_after=told.eval_after,
        run_dir=config.files.root,
        model=config.exported,
    )


def _warn_of_nothing(config: Config, before: int) -> None:
    _warn(NOTHING_TRAINED.format(run=config.files.root, steps=counted(before, "step")))


def _interrupted(config: Config) -> str:
    """Return after which step an interrupt has ended the run, and what the same call does then."""
    run, told = config.files.root, Progress.read(config.files.progress)
    if told is None or not told.step:
        return f"Stopped before the end of step 1. The same call begins the run in {run} again."
    if not told.checkpoint:
        follows = f"No checkpoint is in {run} yet: the same call begins with step 1 again"
    else:
        follows = f"The same call resumes the run in {run} from step {told.checkpoint}"
    return f"Stopped after step {told.step}. {follows}."


def _checked(
    stack: ExitStack,
    reward: Reward | Sequence[Reward] | None,
    environment: str | Callable[..., Environment] | None,
    callbacks: Sequence[Callback],
    flags: Mapping[str, object],
) -> tuple[list[str], Config]:
    """Return the words and the flags of a run that can begin; nothing is started for it.

    Rows of this process are written to the run directory once all checks have passed. Objects have
    their names until the stack ends. Raises ConfigError, and RunError if the disk fails.
    """
    if why := missing_packages() or _hiding():
        raise python_arguments.of_run(why)
    wrong = [*faults(callbacks), *python_arguments.faults(reward, environment, flags)]
    at_fault = {one.path for one in wrong}
    own = {"reward": reward, "environment": environment}
    sound = {name: value for name, value in {**flags, **own}.items() if name not in at_fault}
    moves: dict[Path, Path] = {}
    try:
        given, moves = python_arguments.with_rows_as_files(stack, _named(stack, sound))
        words = to_words(given)
        parsed = parse_all(words)
        found = start_faults(parsed)
    except ConfigError as error:
        raise ConfigError([*wrong, *error.faults]) from None
    except OSError as error:
        raise _of_disk(error) from error
    meant = set(python_arguments.meant_by(at_fault))
    if "environment" in at_fault and reward is None:  # it may score, once it is the right one
        meant.add("remote_rm_url")
    wrong += [
        python_arguments.in_place(python_arguments.as_argument(one), moves)
        for one in found
        if meant.isdisjoint(python_arguments.mentioned(one))
    ]
    if wrong:
        raise ConfigError(list(dict.fromkeys(wrong)))
    for warning in [*parsed.config.warnings, *_blocking(environment)]:
        _warn(python_arguments.in_python(warning))
    if refused := try_code(parsed.config, words, _try_environment, python_arguments.in_python):
        raise python_arguments.of_code(refused)
    if not moves:
        return words, parsed.config
    try:
        for beside, file in moves.items():
            beside.replace(file)
    except OSError as error:
        raise _of_disk(error) from error
    placed = {one: moves.get(at, at) if isinstance(at, Path) else at for one, at in given.items()}
    words = to_words(placed)
    return words, parse_all(words).config


def _hiding() -> str:
    """Return why the Ray that this process is in cannot be used; "" if it is in none."""
    if "ray" not in sys.modules:
        return ""
    from trainer.cluster import placement

    return placement.hiding()


def _blocking(environment: object) -> Sequence[str]:
    """Return where a class of this process blocks; the check of flags reads that of a file."""
    return blocking_of(environment) if isinstance(environment, type) else ()


def _try_environment(config: Config, prompts: Sequence[Prompt]) -> Sequence[Found]:
    """Return what an episode of the environment gives. An error that is not its own is raised."""
    from trainer.rollout.try_code import try_environment_here  # imports torch
    from trainer.training import run

    try:
        return try_environment_here(config, prompts)
    except Exception as error:
        if (code := run.exit_code(error)) is not None:
            raise _of_run(error, code) from error
        raise


def _warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr, flush=True)


def _of_run(error: Exception, code: ExitCode) -> RunError | ConfigError:
    """Return the error of a run whose sentence is enough."""
    if code is ExitCode.USAGE:
        return python_arguments.of_run(str(error))
    return RunError(python_arguments.in_python(str(error)), code)


def _of_disk(error: OSError) -> RunError:
    return RunError(explain(error), ExitCode.RUN_DIR)


def _no_metric(name: str, known: Collection[str]) -> str:
    """Return that no step has a metric, and the names that may be meant, nearest first."""
    _, _, bare = name.rpartition("/")
    having = sorted((one for one in known if bare in one), key=len)
    if near := having[:3] or difflib.get_close_matches(name, known, n=3):
        return f"no step has {name}: did you mean {' or '.join(near)}?"
    return f"no step has {name}: result.to_pandas().columns lists the {len(known)} names"


def _named(stack: ExitStack, flags: Mapping[str, object]) -> dict[str, object]:
    """Return the flags with names for the objects of reward and environment, until the stack ends.

    Raises ConfigError.
    """
    from env import registry as rewards
    from env.environments import registry as environments

    named: dict[str, Any] = {**flags}
    reward, environment = named.get("reward"), named.get("environment")
    several = reward if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
    if reward is not None and any(map(callable, several)):
        try:
            named["reward"] = stack.enter_context(rewards.given_in_python(reward))
        except rewards.RewardSpecError as error:  # of a name beside a function
            raise ConfigError([Fault("reward", None, error.problem, error.remedy)]) from None
    if callable(environment):
        named["environment"] = stack.enter_context(environments.given_in_python(environment))
    return named


@contextmanager
def _ray_as_before() -> Iterator[None]:
    """Leave Ray after the block, if this process was not in one; restore the handler of SIGTERM."""
    import ray

    was_there, handler = ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if not was_there:
            ray.shutdown()
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
