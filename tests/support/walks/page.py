"""The lists of docs/code-walks.md, from a recorded run.

`python -m tests.support.walks.page` starts a small cluster, records it, and renews the page. That
takes some minutes. With a directory of records it renews the page from them.
`python -m tests.support.doc_pages` renews only the spines, and what is said of each file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill

from tests.support.repository import ROOT
from tests.support.walks.callees import bodies, called
from tests.support.walks.run import record
from tests.support.walks.walks import OUTLAST, WALKS, Step, Walk

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
    """Return a walk's section: its spine, and each process's files in the order of first calls."""
    if not walk.processes:
        return with_spine(walk, "")
    threads = {(call.process, call.thread) for call in record}
    taking_part = {one for one in threads if takes_part(*one, walk)}
    calls_of_walk = [call for call in record if (call.process, call.thread) in taking_part]
    parts = [ends(walk, calls_of_walk)]
    if walk.before:
        first, last = (
            next(call.at for call in calls_of_walk if call.name == one) for one in walk.before
        )
        parts.insert(0, (first, last))
    within = [call for call in calls_of_walk if any(a <= call.at <= b for a, b in parts)]
    if faults := unlike_record(walk, within):
        raise ValueError("\n".join([walk.title, *faults]))
    firsts: dict[tuple[str, str], Call] = {}
    for call in within:
        firsts.setdefault((call.process, call.file), call)
    lines = [f"## {walk.title}\n\n\n<details>"]
    for process in dict.fromkeys(call.process for call in within):
        own = [call for call in firsts.values() if call.process == process]
        lines.append(f"- In {process}, from `{own[0].function}`:")
        lines += (item(call.file, "") for call in own)
    return with_spine(walk, "\n".join([*lines, "", "</details>"]))


def unlike_record(walk: Walk, within: Sequence[Call]) -> list[str]:
    """Return which functions of a spine were not called, or not in this order."""
    first: dict[str, float] = {}
    for call in within:
        first.setdefault(call.name, call.at)
    faults = [f"{step.name} was not called" for step in walk.spine if step.name not in first]
    called = [step.name for step in walk.spine if step.name in first]
    for one, other in pairwise(called):
        if first[one] > first[other]:
            faults.append(f"{one} was called after {other}")
    return faults


def with_spine(walk: Walk, section: str) -> str:
    """Return a walk's section with its text and spine as they are now. Its files stay."""
    head = [f"## {walk.title}\n\n{fill(walk.text, 120)}\n", *map(line, walk.spine)]
    if not walk.processes:
        return "\n".join([*head, ""])
    files = section[section.index("\n- In ") : section.rindex("\n</details>")].strip("\n")
    count = len({*FILE.findall(files)})
    return "\n".join(
        [
            *head,
            f'\n<details markdown="1">\n<summary>All {count} files, by process</summary>\n',
            f"{files}\n\n</details>\n",
        ]
    )


def line(step: Step) -> str:
    """Return a function of a spine as an item of a list."""
    file, _, function = step.name.partition(":")
    caller, _, name = step.by.partition(":")
    elsewhere = "" if caller == file else f" of `{caller}`"
    by = f"called by `{name}`{elsewhere}" if name else step.by
    return f"1. `{file}`, `{function}`: {step.says}" + (f" ({by})" if by else "")


def with_spines(page: str) -> str:
    """Return the page with the texts and spines of all walks."""
    for walk in WALKS:
        section = section_of(walk, page)
        page = page.replace(section, with_spine(walk, section))
    return page


def section_of(walk: Walk, page: str) -> str:
    """Return a walk's section of the page."""
    end = r"</details>\n" if walk.processes else r"\n(?=1\. )(1\. [^\n]+\n)+"
    section = re.search(rf"^## {re.escape(walk.title)}\n.*?{end}", page, re.M | re.S)
    assert section, walk.title
    return section[0]


def spine_faults(walk: Walk) -> list[str]:
    """Return which functions of a spine are gone, or are not called by what comes before."""
    faults, earlier = [], list[str]()
    for step in walk.spine:
        file, _, function = step.name.partition(":")
        callers = [step.by] if ".py:" in step.by else earlier
        if function not in bodies(file):
            faults.append(f"{step.name} is gone")
        elif callers and (step.by in ("", *callers)):
            name = function.rpartition(".")[2]
            if not any(name in used(caller) for caller in callers):
                faults.append(f"{step.name} is not called by {step.by or 'a step before it'}")
        earlier.append(step.name)
    return faults


def not_recorded(walk: Walk, section: str) -> list[str]:
    """Return what the functions of a spine always call, in files that the record does not have."""
    files = {*FILE.findall(section)}
    calling = [step.name for step in walk.spine if step.name not in (walk.end, *OUTLAST)]
    found = [f"{name} calls {other}" for name in calling for other in called(name)]
    return [one for one in found if one.split(" calls ")[1].partition(":")[0] not in files]


def used(function: str) -> set[str]:
    """Return the names that a function uses, itself or in functions of its file that it calls."""
    file, _, name = function.partition(":")
    found, todo, seen = set[str](), [name], set[str]()
    while todo:
        one = todo.pop()
        if one in seen or (body := bodies(file).get(one)) is None:
            continue
        seen.add(one)
        own = {part.attr for part in ast.walk(body) if isinstance(part, ast.Attribute)}
        own |= {part.id for part in ast.walk(body) if isinstance(part, ast.Name)}
        found |= own
        within = one.rpartition(".")[0]
        todo += [*own, *(f"{within}.{other}" for other in own)]
    return found


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


def takes_part(process: str, thread: str, walk: Walk) -> bool:
    return process in walk.processes and not re.fullmatch(walk.without, f"{process}/{thread}")


def renewed(page: str, record: Sequence[Call]) -> str:
    """Return the page with the walks of a record."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    walks = "\n".join(shown(walk, record) for walk in WALKS)
    return with_clauses(f"{before}{BEGIN}\n{walks}\n{END}{after}")


if __name__ == "__main__":
    log = Path(sys.argv[1]) if sys.argv[1:] else record()
    PAGE.write_text(renewed(PAGE.read_text(), calls(log)))
