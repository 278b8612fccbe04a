"""The lists of docs/code-walks.md, from a recorded run.

`python -m tests.support.walks.page` starts a small cluster, records it, and renews the page. That
takes some minutes. With a directory of records it renews the page from them.
`python -m tests.support.doc_pages` renews only what is said of each file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.repository import ROOT
from tests.support.walks.run import record

PAGE = ROOT / "docs" / "code-walks.md"
BEGIN, END = "<!-- walks: from here -->\n", "<!-- walks: to here -->\n"
STAGE = re.compile(r"^- In .+?, from\s`([\w.]+)`:\n((?:  - `[\w/]+\.py`.*\n)+)", re.MULTILINE)
"""What one process does: its first function, and a line for each file."""
FILE = re.compile(r"^  - `([\w/]+\.py)`.*$", re.MULTILINE)
MOST_WORDS = 15
"""Of what is said of a file."""
PROCESSES = {
    r"-m rollcall up --": "the head",
    r"-m rollcall up": "a worker node",
    r"-m rollcall (\w+)": "`rollcall {}`",
    r"-m trainer(?!\S)": "the driver",
    r"ray::policy-": "a rank of the policy",
    r"ray::reference-": "a rank of the reference model",
    r"ray::engine-": "an engine",
    r"ray::(\w+)": "the actor {}",
}
"""Pattern of a command line or of a title of Ray's → the process; the first that matches."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What to show of the record: the calls between two others."""

    title: str
    text: str
    begin: str
    """FILE:FUNCTION"""
    end: str
    """The walk ends with the first call of it after the beginning; "": with its process."""
    nth: int = 0
    """Which call of `begin`; the first calls may load what later calls have."""
    processes: tuple[str, ...] = ()
    """Those that take part; others do their own work meanwhile."""
    leads_to: str = ""
    """If given, the walk begins with the last call of `begin` before the first of this one."""
    without: str = ".*/(lease|watch-ray|watch-head|webhook|actor-logs|gpu-use)"
    """Pattern of PROCESS/THREAD, for threads that do work of their own meanwhile."""


TRAINING = (
    "the driver",
    "a rank of the policy",
    "a rank of the reference model",
    "an engine",
)
NODES = ("the head", "a worker node")
WALKS = (
    Walk(
        "A prompt, to the logged row of its step",
        "GRPO on two ranks with the transformers engine and a reward function in a Python file.",
        "trainer/training/loop.py:_Run._step",
        "trainer/metrics/recorder.py:Recorder.step_ended",
        nth=1,
        processes=TRAINING,
    ),
    Walk(
        "An evaluation",
        "The driver has the engines answer held-out prompts, and logs the accuracy.",
        "trainer/training/loop.py:_Run._evaluate",
        "trainer/training/evaluator.py:Evaluator._keep_the_best",
        processes=TRAINING,
    ),
    Walk(
        "A lost rank, to the restored step",
        "A rank of the policy is killed; the other node holds a copy of the last step.",
        "trainer/training/loop.py:_Run._recover",
        "trainer/training/recovery.py:Recovery.report",
        processes=TRAINING,
    ),
    Walk(
        "A node, to its place on the roll",
        "A worker finds the head and checks in; the head tells it whether it may join.",
        "entrypoint/node/membership.py:Membership._join_once",
        "entrypoint/node/membership.py:Membership._stay",
        processes=NODES,
        without="the head/(?!control|asyncio_0|ask).*",
    ),
    Walk(
        "A submitted job, to its process",
        "`rollcall submit` asks a head that waits for jobs.",
        "entrypoint/commands/jobs.py:submit",
        "entrypoint/job/ray_jobs.py:JobClient.submit",
        processes=("`rollcall submit`", "the head"),
    ),
    Walk(
        "A crash of the driver, to the next attempt",
        "The driver is killed; the next one resumes from the newest complete state.",
        "entrypoint/job/supervisor.py:Supervisor._decide",
        "trainer/training/loop.py:_Run._step",
        processes=("the head", "the driver"),
    ),
    Walk(
        "An event, to the webhook",
        "The head posts what happened.",
        "entrypoint/node/webhook.py:Follower.new",
        "entrypoint/node/webhook.py:Follower.new",
        processes=("the head",),
        leads_to="entrypoint/node/webhook.py:Poster.post",
        without="the head/(?!webhook).*",
    ),
    Walk(
        "A plan",
        "`rollcall plan --json` for the same job.",
        "entrypoint/__main__.py:main",
        "",
        processes=("`rollcall plan`",),
    ),
    Walk(
        "SIGTERM, to the saved step",
        "The head has the job save and end, and then the workers.",
        "entrypoint/job/attempt.py:Attempt._stop",
        "entrypoint/job/supervisor.py:record",
        processes=("the head", "the driver"),
    ),
)


@dataclass(frozen=True, slots=True)
class Call:
    at: float
    file: str
    function: str
    thread: str
    process: str
    pid: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.function}"


def calls(log: Path) -> list[Call]:
    """Return all recorded calls in their order."""
    found: list[Call] = []
    for of_process in log.iterdir():
        rows = [line.split("\t") for line in of_process.read_text().splitlines()]
        titles = [row[-1] for row in rows]
        by_ray = (one for one in titles if re.match("ray::(?!IDLE)", one))
        process = named(next(by_ray, titles[0]))
        found += (
            Call(float(at), file, function, thread, process, of_process.name)
            for at, file, function, thread, _ in rows
        )
    return sorted(found, key=lambda call: call.at)


def named(title: str) -> str:
    """Return what a process is called on the page."""
    for pattern, name in PROCESSES.items():
        if matched := re.search(pattern, title):
            return name.format(*matched.groups())
    return title.split(" ")[0]


def shown(walk: Walk, record: Sequence[Call]) -> str:
    """Return a walk's section: each file once, in the order of the first calls by process."""
    calls_of_walk = [call for call in record if takes_part(call, walk)]
    begin, end = ends(walk, calls_of_walk)
    within = [call for call in calls_of_walk if begin <= call.at <= end]
    firsts: dict[str, Call] = {}
    for call in within:
        firsts.setdefault(call.file, call)
    lines = [f"## {walk.title}\n", f"{walk.text} {len(firsts)} files.\n"]
    for process in dict.fromkeys(call.process for call in within):
        own = [call for call in firsts.values() if call.process == process]
        if own:
            lines.append(f"- In {process}, from `{own[0].function}`:")
            lines += (item(call.file, "") for call in own)
    return "\n".join(lines) + "\n"


def item(file: str, said: str) -> str:
    """Return the line of a list for a file: its path, and what is said of it."""
    return f"  - `{file}`: {said}" if said else f"  - `{file}`"


def said_of(file: Path) -> str:
    """Return the beginning of what the first line of a file says."""
    return clause(ast.get_docstring(ast.parse(file.read_text())) or "")


def clause(docstring: str) -> str:
    """Return the beginning of a docstring: its first sentence, cut to a few words."""
    first = re.split(r"(?<=\.)\s", docstring, maxsplit=1)[0]
    words = first.rstrip(".:").split()
    if len(words) <= MOST_WORDS:
        return " ".join(words)
    return " ".join(words[:MOST_WORDS]).rstrip(",;:") + " …"


def with_clauses(page: str) -> str:
    """Return the page with what is now said of each file, where a walk names it first."""
    return "".join(map(_with_clauses, re.split(r"(?m)(?=^## )", page)))


def _with_clauses(walk: str) -> str:
    told: set[str] = set()

    def renewed_item(line: re.Match[str]) -> str:
        file, path = line[1], ROOT / line[1]
        if not path.is_file():
            return line[0]
        said = "" if file in told else said_of(path)
        told.add(file)
        return item(file, said)

    return FILE.sub(renewed_item, walk)


def ends(walk: Walk, record: Sequence[Call]) -> tuple[float, float]:
    """Return when the walk begins and ends."""
    starts = [call for call in record if call.name == walk.begin]
    begin = starts[walk.nth]
    reached = begin.at
    if walk.leads_to:
        reached = next(call.at for call in record if call.name == walk.leads_to)
        begin = [call for call in starts if call.at <= reached][-1]
    if walk.end:
        return begin.at, next(c.at for c in record if c.name == walk.end and c.at >= reached)
    return begin.at, [call.at for call in record if call.pid == begin.pid][-1]


def takes_part(call: Call, walk: Walk) -> bool:
    thread = f"{call.process}/{call.thread}"
    return call.process in walk.processes and not re.fullmatch(walk.without, thread)


def functions(file: Path) -> Iterator[str]:
    """Yield the dotted names of a file's functions."""
    open_nodes: list[tuple[str, ast.AST]] = [("", ast.parse(file.read_text()))]
    while open_nodes:
        within, node = open_nodes.pop()
        for child in ast.iter_child_nodes(node):
            name = within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{within}.{child.name}".lstrip(".")
                yield name
            open_nodes.append((name, child))


def renewed(page: str, record: Sequence[Call]) -> str:
    """Return the page with the walks of a record."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    walks = "\n".join(shown(walk, record) for walk in WALKS)
    return with_clauses(f"{before}{BEGIN}\n{walks}\n{END}{after}")


if __name__ == "__main__":
    log = Path(sys.argv[1]) if sys.argv[1:] else record()
    PAGE.write_text(renewed(PAGE.read_text(), calls(log)))
