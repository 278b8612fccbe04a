"""Plant faults of one line in a copy of the tree, and see whether the unit tests catch each.

    python -m tests.support.planted_faults [--jobs 2] [TEXT …]

A fault names its package and the line to change, not the file, so that it survives a move of the
file. The tests that must catch it lie beside the source: first those that name its module, then the
others of the folder. Some faults name their own test file. With TEXT, only
faults whose line has it are planted. The exit code is 1 if a fault stays uncaught, or if its line
does not stand exactly once in its package.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.support.repository import ROOT

FAULTS = ROOT / "tests/data/planted_faults.toml"
LONGEST_SECONDS = 900
FORKS = get_context("forkserver")
PRELOADED = ["transformers.modeling_utils", "torch.distributed.fsdp", "hypothesis", "pytest", "ray"]
"""Each takes seconds of a CPU: they are imported once, not for each fault."""
PACKAGES = frozenset({"contract", "entrypoint", "env", "tests", "trainer"})
LINKED = (".oracles", ".trackers", ".triton", ".platforms", ".venv", "node_modules")
OUTPUT = ".output"
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A line of a package, and what takes its place."""

    package: str
    old: str
    new: str
    tests: str = ""
    """The file or test that must catch it, where those beside the source need not."""

    def file(self, root: Path) -> Path | None:
        """Return the source file with the line, None unless it stands once in the package."""
        files = (root / self.package).rglob("*.py")
        places = [file for file in files for _ in range(file.read_text().count(self.old))]
        return places[0] if len(places) == 1 else None


@dataclass(frozen=True)
class Verdict:
    """Whether the tests caught a fault, and the first test that failed."""

    caught: bool
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="plant only faults with this text")
    arguments = parser.parse_args()
    rows = tomllib.loads(FAULTS.read_text())["fault"]
    faults = [Fault(**row) for row in rows]
    if arguments.texts:
        faults = [f for f in faults if any(text in f.old for text in arguments.texts)]
    FORKS.set_forkserver_preload(PRELOADED)
    caught = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for fault, verdict in zip(faults, pool.map(verdict_of, faults), strict=True):
            caught += verdict.caught
            print(f"{'caught' if verdict.caught else 'NOT CAUGHT'}  {fault.package}: {fault.old}")
            print(f"    {verdict.text}", flush=True)
    print(f"{caught} of {len(faults)} faults were caught")
    return 0 if caught == len(faults) else 1


def verdict_of(fault: Fault) -> Verdict:
    """Run the tests beside the fault's file in a copy of the tree that has the fault."""
    with copied_tree() as root:
        if (file := fault.file(root)) is None:
            return Verdict(False, "its line does not stand exactly once in the package: renew it")
        text = file.read_text().replace(fault.old, fault.new)
        file.unlink()  # a hard link to the tree's own file
        file.write_text(text)
        process = FORKS.Process(target=run_tests, args=(root, tests_of(fault, file, root)))
        process.start()
        process.join(LONGEST_SECONDS)
        if process.exitcode is None:
            process.kill()
            return Verdict(True, f"the tests did not end within {LONGEST_SECONDS} s")
        printed = (root / OUTPUT).read_text()
    where = str(file.relative_to(root))
    if process.exitcode != 1:
        return Verdict(False, f"{where}: pytest ended with {process.exitcode}")
    first = FIRST_FAILURE.search(printed)
    return Verdict(True, f"{where}: {first[1] if first else printed[-200:]}")


def run_tests(root: Path, tests: list[str]) -> None:
    """Run pytest on the copy in this process, which was forked with the libraries imported."""
    output = os.open(root / OUTPUT, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path = [str(root), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.argv = ["pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    runpy.run_module("pytest", run_name="__main__")


def tests_of(fault: Fault, file: Path, root: Path) -> list[str]:
    """Return the fault's own test file, or those of the source's folder.

    First come those that name the source's module.
    """
    if fault.tests:
        return [fault.tests]
    source = file.relative_to(root)
    tests = sorted((root / "tests" / source.parent).rglob("test_*.py"))
    module = ".".join(source.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    named = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    naming = {test for test in tests if named.search(test.read_text())}
    ordered = sorted(tests, key=lambda test: (test not in naming, test))
    return [str(test.relative_to(root)) for test in ordered]


@contextmanager
def copied_tree() -> Iterator[Path]:
    """The files that git tracks or does not ignore, as hard links in a folder of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(dir=ROOT.parent, prefix=".planted-") as folder:
        root = Path(folder)
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(ROOT / name, root / name, follow_symlinks=False)
        for name in LINKED:
            if (ROOT / name).is_dir():
                (root / name).symlink_to(ROOT / name)
        yield root


if __name__ == "__main__":
    sys.exit(main())
