"""The command line: one of the image's commands, or another program."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from contract.options import MISTYPED, ParseError, did_you_mean, nearest
from entrypoint.commands.pasted import NoJobError, Pasted, pasted
from entrypoint.config import parsers
from entrypoint.config.recipe_registry import SUPERVISED

DEMO_TAKES = "about three minutes"
"""With 120 steps on two CPU cores that have nothing else to do."""
COMMANDS: Mapping[str, str] = {
    "up": "run this node: the head, or a worker if RAY_WORKER=1 (the default command)",
    "plan": "say what this node, or a cluster of others, would do, and do nothing",
    "init": "write the files of a new run: flags, a reward function with a test, the platform's",
    "doctor": "check this node",
    "sft": "run this node with a supervised stage: sft --pretrain MODEL --dataset DATA",
    "rm": "the same with the training of a reward model",
    "dpo": "the same with direct preference optimization",
    "submit": "bring a job to a cluster that waits for jobs: submit -- python train.py",
    "pipeline": "bring several jobs to it, each to start after the one before: pipeline FILE.yaml",
    "list": "the jobs of a cluster, oldest first",
    "status": "what the head knows of the run or of a job: nodes, progress, outcome, the page",
    "wait": "wait for the end of the run or of a job, and end with its exit code",
    "open": "the page of the head, of a run that is over, or of all runs in a directory: open RUN",
    "logs": "the end of every log of the run but Ray's, or single logs: logs -f NODE",
    "events": "the journal of the run or of a job",
    "report": "the flight record of a run: report RUN",
    "bundle": "one archive for a bug report, without secrets: bundle RUN --out FILE.tar.gz",
    "stop": "ask the head to save and to stop, or end one job",
    "rotate-token": "put a new token in the place of the run's, while the run goes on",
    "prepare": "make the data and the model of a task, or an index: prepare arithmetic --out DIR",
    "serve-retriever": "serve passages over HTTP: serve-retriever --index DIR",
    "serve-reward": "serve a reward model over HTTP: serve-reward --model DIR",
    "translate": "a command of verl, OpenRLHF or TRL's GRPO as one of the builtin trainer",
    "completion": 'complete commands and flags in bash and zsh: eval "$(rollcall completion)"',
    "demo": f"a head, two workers and a reward server on this machine, training: {DEMO_TAKES}",
}

OTHER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("cancel", "kill", "abort", "delete", "terminate", "scancel"), "stop"),
    **dict.fromkeys(("ps", "ls", "jobs", "queue", "squeue"), "list"),
    **dict.fromkeys(("run", "start", "launch", "serve"), "up"),
    **dict.fromkeys(("sbatch", "add"), "submit"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("show", "info", "describe", "state"), "status"),
    **dict.fromkeys(("check", "preflight", "diagnose"), "doctor"),
    **dict.fromkeys(("dashboard", "page", "ui"), "open"),
}
"""Words of other programs → the command that does the same."""
WAIT = "--wait-for-jobs"
"""Flag of `up` and `plan`: the cluster has no job of its own."""
NO_CODE = "--no-code"
"""Flag of `up` and `plan`: the user's code is not tried before the job starts."""
OWN = ("--help", "--version")
"""Flags of `rollcall` itself, alone."""
NAME, NAME_VARIABLE = "--name", "ROLLCALL_NAME"
"""Flag of `up` and `plan`: the run's name, and the variable that it stands for."""
AS_A_COMMAND = 0.8
"""difflib's ratio from which a program's name, such as `stat`, counts as a mistyped command."""
OWN_ARGUMENTS = ("init", "demo", "report", "bundle")
"""Commands whose modules parse their arguments."""
REMOTE = (
    "submit",
    "pipeline",
    "list",
    "status",
    "wait",
    "open",
    "logs",
    "events",
    "stop",
    "rotate-token",
)
"""Commands that ask a head, and take arguments of their own (commands/arguments.py)."""


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """What no variable says of the nodes for which `plan` is asked."""

    gpus: tuple[int, ...] = ()
    """The GPUs of each node, the head's first; () if they are equal."""
    memory: int = 0
    """Bytes of the memory of each node's CPUs; 0 if not given."""
    elsewhere: bool = False
    """They are other machines than this one: their number or their GPUs are given."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Variable → the flag of `plan` that gave its value."""
    columns: tuple[str, ...] = ()
    """The columns that data sets have which are not on this machine; () if nothing is assumed."""


LIKE_THIS_ONE = PlannedNodes()


@dataclass(frozen=True, slots=True)
class Invocation:
    command: str
    """One of COMMANDS, `help` (of `arguments`), `version`, or `exec`: another program."""
    arguments: tuple[str, ...] = ()
    as_json: bool = False
    waits_for_jobs: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables that a stage and the flags of `plan` stand for."""
    planned: PlannedNodes = LIKE_THIS_ONE
    shows_cost: bool = False
    """`plan` also estimates the seconds of a step."""
    stages_of: str = ""
    """The file of a pipeline whose stages `plan` shows; "" if it plans one job."""


HELP = Invocation("help")
VERSION = Invocation("version")


class UsageError(Exception):
    """The words are not a command; the sentence names the commands."""


def never(words: Sequence[str]) -> bool:
    return False


def parse(
    words: Sequence[str],
    *,
    recipe_takes_command: bool = False,
    is_job: Callable[[Sequence[str]], bool] = never,
) -> Invocation:
    """Parse `words`, all that follows the image's name.

    Flags go to the job of `up`. Another program is executed, unless the recipe runs any command
    (`recipe_takes_command`) or a recipe knows the program (`is_job`): then the program is the job.
    A word that is not a program and resembles a command is reported as a misspelt command; so is a
    program's name, but not its path, if it resembles one closely.
    """
    if not words:
        return _start("up", ())
    first, rest = words[0], tuple(words[1:])
    if first in ("-h", "--help") or (first == "help" and not rest):
        return HELP
    if first == "help":
        if rest[0] not in COMMANDS:
            raise UsageError(f"{rest[0]} is not a command: {_meant(rest[0])}")
        return parse([rest[0], "--help"])
    if first in ("-V", "--version", "version"):
        return VERSION
    if first in COMMANDS and rest[:1] == ("--version",):
        return VERSION
    if first in ("up", "plan", "doctor", "completion") and rest[:1] in (("-h",), ("--help",)):
        return Invocation("help", (first,))
    if first in parsers.STAGES:
        if {"-h", "--help"} & set(rest):
            return Invocation(first, ("--help",))
        return _with_stage(_start("up", tuple(words)), recipe_takes_command)
    if first == "up":
        job = rest[1:] if rest[:1] == ("--",) else rest
        call = _start("up", job)
        if found := _pasted(call.arguments):
            inner = _start("up", found.job)
            variables = {**found.variables, **inner.variables, **call.variables}
            call = replace(inner, variables=variables)
        return _with_stage(call, recipe_takes_command)
    if first == "translate":
        return Invocation(first, rest)  # it tells a command from its own arguments
    if first in ("prepare", "serve-retriever", "serve-reward", *OWN_ARGUMENTS, *REMOTE):
        own = rest[1:] if rest[:1] == ("--",) and first != "submit" else rest
        return Invocation(first, own)
    if first == "plan":
        return _with_stage(_plan(rest), recipe_takes_command)
    if first == "completion" and rest:
        raise UsageError(f"completion does not take {' '.join(rest)}")
    if first in COMMANDS:
        return _reader(first, rest)
    if first == "--":
        return _start("up", rest)
    if first.startswith("-") and not rest and (meant := _own_flag(first)):
        raise UsageError(f"{first}: unknown flag. Did you mean {meant}?")
    if first.startswith("-") or (not recipe_takes_command and is_job(words)):
        return _start("up", tuple(words))
    return _program(words, recipe_takes_command=recipe_takes_command)


def _own_flag(word: str) -> str | None:
    """Return the flag of `rollcall` itself that a lone flag may mean; None if it resembles none."""
    return "-V" if word == "-v" else nearest(word, OWN, cutoff=MISTYPED)


def _program(words: Sequence[str], *, recipe_takes_command: bool) -> Invocation:
    """Return how words are run that are no command of ours. Raises UsageError for no program."""
    first = words[0]
    if program := shutil.which(first):
        if recipe_takes_command:
            return Invocation("up", tuple(words))
        if "/" not in first and (meant := nearest(first, COMMANDS, cutoff=AS_A_COMMAND)):
            hint = f"`rollcall {program}` runs the program"
            raise UsageError(f"{first}: did you mean {meant}? {hint}\n  {meant}: {COMMANDS[meant]}")
        return Invocation("exec", tuple(words))
    if recipe_takes_command and ("/" in first or not nearest(first.lower(), COMMANDS)):
        return Invocation("up", tuple(words))  # a worker's image may lack what the head runs
    raise UsageError(f"{first} is neither a command nor a program here: {_meant(first)}")


def _with_stage(call: Invocation, recipe_takes_command: bool) -> Invocation:
    """Return the call with the recipe `supervised` if its job is a stage of that recipe.

    Recipes that take a command, such as `trl`, may have stages of these names.
    """
    if recipe_takes_command or call.arguments[:1] not in {(stage,) for stage in parsers.STAGES}:
        return call
    return replace(call, variables={**call.variables, "ROLLCALL_RECIPE": SUPERVISED})


def _meant(word: str) -> str:
    """Return which command a word may mean; where all are listed if it resembles none."""
    if meant := OTHER_WORDS.get(word.lower(), ""):
        return f"did you mean {meant}?\n  {meant}: {COMMANDS[meant]}"
    return did_you_mean(word.lower(), COMMANDS, "`rollcall --help` lists the commands")


def wants_json(words: Sequence[str]) -> bool:
    """Whether `--json` is among a command's own words, which end at `--`. `up` has none."""
    if not words or words[0] == "up" or words[0].startswith("-"):
        return False
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _reader(command: str, rest: tuple[str, ...]) -> Invocation:
    """Parse a command that takes --json and nothing else."""
    as_json = "--json" in rest
    if others := tuple(word for word in rest if word not in ("--json", "--")):
        raise UsageError(f"{command} does not take {' '.join(others)}; it takes --json")
    return Invocation(command, as_json=as_json)


def _start(command: str, job: tuple[str, ...]) -> Invocation:
    """Return `up` or `plan` of a job, or of a cluster that waits for jobs. Raises UsageError."""
    job, variables = _without_own(job)
    if variables:
        return replace(_start(command, job), variables=variables)
    if not job or not job[0].startswith("-") or WAIT not in job:
        return Invocation(command, job)
    if others := [word for word in job if word != WAIT]:
        problem = f"{command} {WAIT} does not take {' '.join(others)}"
        raise UsageError(f"{problem}: `rollcall submit` brings the jobs of such a cluster")
    return Invocation(command, waits_for_jobs=True)


def _without_own(job: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the job without the flags of `up`, and the variables that these stand for.

    After the name of a program, all words are the program's.
    """
    kept: list[str] = []
    variables: dict[str, str] = {}
    words = list(job)
    while words and (words[0].startswith("-") or (kept and kept[0].startswith("-"))):
        name, equals, value = words[0].partition("=")
        if name == "--":
            return (*kept, *words[1:]), variables
        if name == NAME:
            if not equals and len(words) < 2:
                raise UsageError(f"{NAME} has no value, as in {NAME} first-try")
            variables[NAME_VARIABLE] = value if equals else words.pop(1)
            words.pop(0)
        elif words[0] == NO_CODE:
            variables["ROLLCALL_CHECK_CODE"] = "0"
            words.pop(0)
        else:
            kept.append(words.pop(0))
    return (*kept, *words), variables


def _pasted(words: Sequence[str]) -> Pasted | None:
    """Return the job of a whole `rollcall up …`; None of other words. Raises UsageError."""
    try:
        return pasted(words, COMMANDS)
    except NoJobError as error:
        raise UsageError(str(error)) from None


COLUMNS, PIPELINE = "--assume-columns", "pipeline"
CLUSTER_FLAGS = {
    "--nodes": ("N", "plan for N nodes, of which one is the head"),
    "--gpus": ("N", "GPUs of each node: 8, or node by node 8,8,4"),
    "--gpu-memory": ("SIZE", "memory of each GPU, such as 80GB"),
    "--memory": ("SIZE", "memory of each node's CPUs, such as 1000GB"),
    COLUMNS: ("NAMES", "columns, such as prompt,answer, of data that is not on this machine"),
}
"""Flags of `plan` with a value → the value's name, and the help."""


def _plan(rest: tuple[str, ...]) -> Invocation:
    """Parse the flags of `plan`; all other words are the job, and after a program only that.

    `--nodes 3 --gpus 8 --gpu-memory 80GB`: three nodes, each with eight GPUs of 80 GB. `--gpus
    8,8,4` says it node by node. `--memory 1000GB`: the memory of each node's CPUs.
    `--assume-columns prompt,answer`: what the data have that is not on this machine.
    """
    given: dict[str, str] = {}
    switches: set[str] = set()
    own: list[str] = []
    job: list[str] = []
    words = list(rest)
    pasted_with: Mapping[str, str] = {}
    while words:
        if not job and words[0][:1] != "-" and (found := _pasted(words)):
            pasted_with, words = {**pasted_with, **found.variables}, list(found.job)
            continue
        name, equals, value = words.pop(0).partition("=")
        if job and not job[0].startswith("-") and job[0] not in parsers.STAGES:
            job.append(name + equals + value)
        elif name in CLUSTER_FLAGS:
            if not equals and not words:
                raise UsageError(f"{name} has no value, as in {name} 8")
            given[name] = value if equals else words.pop(0)
        elif name in ("--json", "--cost", "--"):
            switches.add(name)
        elif name in (NAME, NO_CODE):
            own.append(name + equals + value)
            if name == NAME and not equals:
                own += words[:1]
                del words[:1]
        else:
            job.append(name + equals + value)
    gpus = _numbers("--gpus", given.get("--gpus", ""))
    nodes = _numbers("--nodes", given.get("--nodes", "")) or ([len(gpus)] if len(gpus) > 1 else [])
    if len(nodes) > 1 or 0 in nodes or (len(gpus) > 1 and [len(gpus)] != nodes):
        raise UsageError("--nodes takes one number above 0; with --gpus 8,8,4 that is 3")
    stages_of = _pipeline_file(job) if job[:1] == [PIPELINE] else ""
    call = _start("plan", (*own, *([WAIT] if stages_of else job)))
    of_flags = {
        "--nodes": ("EXPECTED_WORKERS", str(nodes[0] - 1) if nodes else ""),
        "--gpus": ("ROLLCALL_NUM_GPUS", str(gpus[0]) if gpus else ""),
        "--gpu-memory": ("ROLLCALL_GPU_MEMORY", given.get("--gpu-memory", "")),
    }
    variables = {name: value for name, value in of_flags.values() if value}
    return replace(
        call,
        stages_of=stages_of,
        as_json="--json" in switches,
        shows_cost="--cost" in switches,
        variables={**pasted_with, **call.variables, **variables},
        planned=PlannedNodes(
            flags={name: _named(flag, given) for flag, (name, value) in of_flags.items() if value},
            gpus=tuple(gpus) if len(gpus) > 1 else (),
            memory=_memory(given),
            elsewhere=bool(gpus or nodes),
            columns=tuple(filter(None, map(str.strip, given.get(COLUMNS, "").split(",")))),
        ),
    )


def _named(flag: str, given: Mapping[str, str]) -> str:
    """Return the flag that gave a value: `--gpus 8,8,4` gives the number of nodes, too."""
    return flag if flag in given else "--gpus"


def _pipeline_file(job: Sequence[str]) -> str:
    if len(job) != 2 or job[1].startswith("-"):
        raise UsageError("plan pipeline takes one file, as in plan pipeline stages.yaml")
    return job[1]


def _memory(given: Mapping[str, str]) -> int:
    text = given.get("--memory", "")
    try:
        return parsers.size(text) if text else 0
    except ParseError as error:
        raise UsageError(f"--memory {text} {error}") from None


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")] if text else []
    except ValueError:
        raise UsageError(f"{flag} {text} is not a number, as in {flag} 8") from None


def help_text() -> str:
    indent = " " * (max(map(len, COMMANDS)) + 4)
    columns = shutil.get_terminal_size().columns - 1
    text = textwrap.TextWrapper(columns, subsequent_indent=indent, break_on_hyphens=False)
    lines = []
    for name, summary in COMMANDS.items():
        text.initial_indent = f"  {name}".ljust(len(indent))
        lines.append(text.fill(summary))
    return "\n".join(
        [
            "usage: rollcall [COMMAND] [ARGUMENTS]",
            "",
            *lines,
            "",
            "With no command, or with flags alone, the node comes up and the flags go to the job.",
            "With --wait-for-jobs, it comes up without a job, and `submit` brings jobs.",
            "The command of a trainer (verl, OpenRLHF, TRL, torchrun, …) is a job, as it is typed.",
            "Any other program is executed as it is: `up` before it makes it a job.",
            "Settings come from the environment: see plan.",
            "`rollcall COMMAND --help` has a command's arguments; --version prints the version.",
        ]
    )
