"""Every example in the docs runs, and what the docs quote from the code is what the code says.

A block fenced as ```sh run=LEVEL is executed line by line: `default` at once, `cluster` where Ray
nodes may start, `faults` with `make faults`, `server` in the background, `after` against the server
before it, `jobs` against a head that waits for jobs, `own-data` beside a test's rows and model.
Blocks fenced as ```python run=python are one program, which runs after the page's block
`before-python`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.run_context import RunContext
from entrypoint.run.failure_classes import FAILURES, FailureClass
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.doc_pages import (
    ALGORITHMS,
    MONITORING,
    RECOVERY,
    with_failures,
    with_losses,
    with_metrics,
    with_variables,
)
from tests.support.job_head import JobHead, finishes, soon, until_stopped
from tests.support.ray_nodes import short_directory
from tests.support.repository import ROOT
from tests.support.walks.callees import bodies
from tests.support.walks.page import (
    FILE,
    STAGE,
    not_recorded,
    section_of,
    spine_faults,
    with_clauses,
    with_spines,
)
from tests.support.walks.page import PAGE as WALKS
from tests.support.walks.walks import WALKS as ALL_WALKS
from tests.support.walks.walks import Walk

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
REFERENCE, GLOSSARY = ROOT / "docs" / "reference.md", ROOT / "docs" / "glossary.md"
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
PACKAGES = ("contract", "entrypoint", "env", "rollcall", "trainer")
FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(level: str, wanted: str = "sh") -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for language, options, body in FENCE.findall(page.read_text()):
            if language == wanted and f"run={level}" in options.split():
                found.append((page.name, body.replace("\\\n", " ")))
    return found


def run(body: str, directory: Path, **env: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line in filter(None, body.splitlines()):
        done = subprocess.run(
            shlex.split(line.replace("$PWD", str(directory))),
            cwd=directory,
            env=os.environ | {"PATH": path} | env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("page", "body"), blocks("default"))
def test_an_example_runs(page: str, body: str, tmp_path: Path) -> None:
    run(body, tmp_path)


TUNNELS = [
    (page.name, command)
    for page in (*PAGES, *(ROOT / "compose").rglob("*.y*ml"))
    for command in re.findall(r"[`| ](ssh [^`|]+)`", page.read_text())
]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
@pytest.mark.parametrize(("page", "command"), TUNNELS)
def test_ssh_takes_each_of_its_commands_and_leads_the_port_to_the_same_one(
    page: str, command: str
) -> None:
    words = shlex.split(command)
    asked = ["ssh", "-F", os.devnull, "-G", *words[1:]]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    (host,) = re.findall(r"^host (.*)$", done.stdout, re.MULTILINE)
    assert host in words
    for port, there in re.findall(r"^localforward (\d+) \[?.*?\]?:(\d+)$", done.stdout, re.M):
        assert port == there
    assert ("-L" in words) == ("\nlocalforward " in done.stdout)


@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("page", "body"),
    [
        *blocks("cluster"),
        *(pytest.param(*block, marks=pytest.mark.faults) for block in blocks("faults")),
    ],
)
def test_an_example_that_trains_runs(page: str, body: str, tmp_path: Path) -> None:
    run(body, tmp_path)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_rows_of_a_user_train_with_the_three_commands_of_the_readme(tmp_path: Path) -> None:
    """A tiny model is in the place of the one on the hub."""
    rows = [{"question": f"Say {word}.", "answer": word} for word in ("red", "blue", "grey", "tan")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_model(TinyModel(hidden_size=32, layers=1), string.printable, tmp_path / "model")
    ((page, body),) = blocks("own-data")
    (name,) = re.findall(r"--model (\S+)", body)
    with short_directory() as ray_directory:
        run(body.replace(name, "model"), tmp_path, ROLLCALL_RAY_TEMP_DIR=str(ray_directory))
    assert page == "README.md"
    assert (tmp_path / "run" / "hf" / "config.json").exists()


@pytest.mark.cluster
@pytest.mark.faults  # six runs
@pytest.mark.timeout(600)
def test_the_python_page_is_a_program_that_trains(tmp_path: Path) -> None:
    ((_, before),) = blocks("before-python")
    run(before, tmp_path)
    program = tmp_path / "program.py"
    parts = [body for _, body in blocks("python", "python")]
    # One Ray for all runs of the page; it stays between them.
    joins = "import ray\nray.init(num_cpus=4, include_dashboard=False)\n"
    program.write_text(joins + "\n".join(parts))
    with short_directory() as ray_directory:
        run("python program.py", tmp_path, RAY_TMPDIR=str(ray_directory), OMP_NUM_THREADS="1")
    assert (tmp_path / "run" / "hf" / "config.json").exists()
    assert (tmp_path / "watched" / "checkpoints" / "global_step_1").is_dir()


def test_the_examples_of_jobs_run_against_a_head_that_waits_for_jobs(tmp_path: Path) -> None:
    def act(context: RunContext) -> Outcome:
        return until_stopped(context) if "sleep" in context.settings.job[-1] else finishes(context)

    ((_, body),) = blocks("jobs")
    with JobHead(tmp_path, python=act) as head:
        run(body, tmp_path, **head.environment)
        soon(lambda: head.state("job-2") == "stopped")
        assert head.state("job-1") == "finished"


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_the_server_example_answers_the_client_example(tmp_path: Path, free_port: int) -> None:
    ((_, serve),), ((_, ask),) = blocks("server"), blocks("after")
    serve, ask = (text.replace("5000", str(free_port)) for text in (serve, ask))
    argv = [sys.executable, *shlex.split(serve)[1:]]
    server = subprocess.Popen(argv, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while True:
            done = subprocess.run(shlex.split(ask), capture_output=True, text=True)
            if done.returncode == 0:
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert '"rewards":[1.0]' in done.stdout.replace(" ", "")
    finally:
        server.terminate()
        server.wait(30)


def test_the_tutorial_of_a_model_that_searches_is_read_in_minutes() -> None:
    """tests/cluster/test_search_tutorial.py runs its commands."""
    words = (ROOT / "docs" / "tutorial-search.md").read_text().split()
    assert len(words) <= 900


def test_there_are_examples_to_run() -> None:
    assert blocks("default")
    assert blocks("cluster")


def test_troubleshooting_has_a_remedy_for_each_failure_class() -> None:
    page = TROUBLESHOOTING.read_text()
    no_failure = {FailureClass.FINISHED, FailureClass.SCALED_UP, FailureClass.STRAGGLER}
    assert [kind for kind in {*FailureClass} - no_failure if f"| `{kind}` |" not in page] == []


def texts_of_sources() -> list[str]:
    """The texts in the packages' code; `…` is in the place of what a text gets when it is used."""
    found = []
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            constants = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
            found.append("".join(part for part in constants if isinstance(part, str)))
    return [" ".join(text.split()) for text in set(found)]


def test_messages_that_troubleshooting_quotes_are_in_the_code() -> None:
    _, _, by_message = TROUBLESHOOTING.read_text().partition("## By message")
    rows = re.findall(r"^\| (.*?) \|", by_message, re.MULTILINE)
    quoted = [text for row in rows for text in re.findall('"(.+?)"', row)]
    assert len(quoted) > 50
    texts = texts_of_sources()
    patterns = {text: ".*?".join(map(re.escape, text.split("…"))) for text in quoted}
    assert [text for text, at in patterns.items() if not any(re.search(at, t) for t in texts)] == []


def test_recovery_has_the_table_of_failure_classes() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    assert set(FAILURES) == set(FailureClass)
    assert with_failures(RECOVERY.read_text()) == RECOVERY.read_text()


def test_events_that_pages_name_are_in_the_code() -> None:
    """A page names the kind of an event, as `rollcall events` shows it."""
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    texts = {text for path in sources for text in re.findall(r'"([\w-]+)"', path.read_text())}
    named = {
        (page.name, kind)
        for page in PAGES
        for kind in re.findall(r"\bevent `([\w-]+)`", " ".join(page.read_text().split()))
    }
    assert named
    assert {(page, kind) for page, kind in named if kind not in texts} == set()


def test_the_reference_has_the_files_of_a_run() -> None:
    names = {path.name for path in of_a_run(RunFiles(Path("/run")))}
    assert {name for name in names if f"`{name}" not in REFERENCE.read_text()} == set()


def of_a_run(run: RunFiles) -> list[Path]:
    """All paths that `run` has."""
    properties = [name for name, of in vars(RunFiles).items() if isinstance(of, property)]
    return [path for name in properties if isinstance(path := getattr(run, name), Path)]


def test_the_reference_has_the_tables_of_settings() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    assert with_variables(REFERENCE.read_text()) == REFERENCE.read_text()


def test_the_page_on_monitoring_has_the_table_of_metrics() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    assert with_metrics(MONITORING.read_text()) == MONITORING.read_text()


def test_the_page_of_algorithms_has_the_present_table_of_losses() -> None:
    page = ALGORITHMS.read_text()
    assert "| `gspo` | sequence |" in page
    assert with_losses(page) == page, "python -m tests.support.doc_pages"


def markdown_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines()]


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as the usual Markdown hosts make them; of code, lines."""
    if page.suffix == ".py":
        return {f"L{number}" for number, _ in enumerate(page.read_text().splitlines(), 1)}
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", FENCE.sub("", page.read_text())):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_and_anchors_lead_somewhere() -> None:
    found = {page.relative_to(ROOT): broken_links(page) for page in markdown_files()}
    assert {page: links for page, links in found.items() if links} == {}


def test_each_picture_is_there_is_small_has_a_text_and_is_used() -> None:
    named = {
        ((page.parent / path).resolve(), text)
        for page in PAGES
        for text, path in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text())
    }
    assert named
    assert [path for path, text in named if not text] == []
    assert {path for path, _ in named} == {*(ROOT / "docs" / "images").iterdir()}
    large = 150_000  # bytes
    assert [path for path, _ in named if path.stat().st_size > large] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`: c\n[x](#a-b-c) [x](page.md) [x](#gone) [x](gone.md) [x](https://a)\n")
    assert broken_links(page) == ["#gone", "gone.md"]


def test_the_index_lists_every_page() -> None:
    """A folder's pages are in its own index.md, which docs/README.md lists."""
    docs = ROOT / "docs"
    indexes = [docs / "README.md", *sorted(docs.glob("*/index.md"))]
    listed = {
        (index.parent / link).resolve()
        for index in indexes
        for link in re.findall(r"\]\(([^)#]+\.md)\)", index.read_text())
    }
    assert {page for page in docs.rglob("*.md") if page != indexes[0]} - listed == set()


def test_source_files_that_pages_name_exist() -> None:
    named = {
        (page.name, path)
        for page in markdown_files()
        if page.name != "CHANGELOG.md"
        for path in re.findall(
            r"`((?:contract|entrypoint|trainer|env|bench|tests)/[\w/.-]+)`", page.read_text()
        )
    }
    assert named
    gone = {(page, path) for page, path in named if not (ROOT / path).exists()}
    assert {(page, path) for page, path in gone if "NAME" not in path} == set()


def test_the_architecture_page_lists_every_folder() -> None:
    (tree,) = re.findall(r"^```\n(entrypoint/.+?)^```", ARCHITECTURE.read_text(), re.M | re.S)
    above: list[str] = []
    listed = set()
    for indent, name in re.findall(r"^( *)(\w+/)\s", tree, re.MULTILINE):
        above = [*above[: len(indent) // 2], name]
        listed.add("".join(above))
    files = subprocess.run(
        ["git", "ls-files", "contract", "entrypoint", "trainer", "env/__init__.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    folders = {re.match(r"(\w+/){1,2}", name) for name in files.stdout.splitlines()}
    assert {found[0] for found in folders if found} - listed == set()
    assert {path for path in listed if not (ROOT / path).is_dir()} == set()


def test_the_architecture_page_lists_packages_in_the_order_of_the_linters_layers() -> None:
    (tree,) = re.findall(r"^```\n(entrypoint/.+?)^```", ARCHITECTURE.read_text(), re.M | re.S)
    above = re.findall(r"^(\w+)/", tree, re.MULTILINE)
    assert above == ["entrypoint", "trainer", "env", "contract"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (below,) = (one for one in contracts if one.get("source_modules") == ["contract"])
    assert {*above[:-1]} <= {*below["forbidden_modules"]}
    layers = {one["containers"][0]: one["layers"] for one in contracts if "layers" in one}
    for package in re.split(r"(?m)^(?=\w)", tree)[1:]:
        order = [re.split(" : ", layer) for layer in layers[package.partition("/")[0]]]
        rank = {name: place for place, names in enumerate(order) for name in names}
        listed = re.findall(r"^  (\w+)(?:/|\.py)", package, re.MULTILINE)
        assert [rank[name] for name in listed] == sorted(rank[name] for name in listed)


def test_the_code_walks_name_files_and_functions_that_exist() -> None:
    """Renewed by `python -m tests.support.walks.page`, from a run."""
    page = WALKS.read_text()
    assert {f"## {walk.title}" for walk in ALL_WALKS} <= {*re.findall(r"^## .+$", page, re.M)}
    stages = [(first, FILE.findall(files)) for first, files in STAGE.findall(page)]
    assert len(stages) == len(re.findall("^- In ", page, re.MULTILINE))
    assert len(stages) > len(ALL_WALKS)
    assert [path for _, files in stages for path in files if not (ROOT / path).is_file()] == []
    assert [first for first, files in stages if first not in bodies(files[0])] == []
    assert page == with_clauses(with_spines(page)), "python -m tests.support.doc_pages"
    for walk in page.split("\n## "):
        first = re.findall(r"^1\. `([\w/]+\.py)`, ", walk, re.MULTILINE)
        ran = {*FILE.findall(walk)} or {*first}  # a spine may have no record
        assert {*first} <= ran, "a function to read did not run"
        told = re.findall(r"^  - `([\w/]+\.py)`: ", walk, re.MULTILINE)
        assert sorted(told) == sorted(set(told)), "what a file is for is said once in a walk"


@pytest.mark.parametrize("walk", ALL_WALKS, ids=lambda walk: walk.title)
def test_each_function_of_a_spine_is_called_by_what_comes_before(walk: Walk) -> None:
    """If one is not, correct `tests/support/walks/walks.py`, and record the walks again."""
    assert spine_faults(walk) == []
    if walk.processes:
        assert not_recorded(walk, section_of(walk, WALKS.read_text())) == []
    assert len(walk.spine) <= 18
    assert [step for step in walk.spine if len(step.says.split()) > 12] == []


def test_the_glossary_is_sorted() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", GLOSSARY.read_text(), re.MULTILINE)
    terms = [term for term, _ in rows if term != "term"]
    assert terms
    assert terms == sorted(set(terms), key=str.lower)
