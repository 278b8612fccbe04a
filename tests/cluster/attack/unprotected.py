"""The attacks on a copy of the tree whose protections are taken off: can they find anything?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.attack.attacks import RAISED
from tests.support.planted_faults import Fault, copied_tree
from tests.support.repository import ROOT

FAULTS = ROOT / "tests/data/unprotected.toml"
LINE = re.compile(r"^(\w+) → [^→]+ → (.*) \(\d+\.\d s\)$")
"""Matches a result as it is printed."""
ENDING = ("weaker_keys", "preempt", "hang_up")
"""Attacks that end a head without protection: each has a head of its own."""
BLIND = ("nothing", RAISED)


def faults() -> dict[str, list[Fault]]:
    """Return, for each attack, what takes its protections off."""
    found: dict[str, list[Fault]] = {}
    for row in tomllib.loads(FAULTS.read_text())["fault"]:
        fault = Fault(row["package"], row["old"], row["new"])
        for attack in row["attacks"]:
            found.setdefault(attack, []).append(fault)
    return found


def take_off(root: Path) -> None:
    """Take all protections off a copy of the tree."""
    for fault in {fault for several in faults().values() for fault in several}:
        file = fault.file(root)
        assert file is not None, f"{fault.old!r} does not stand exactly once in {fault.package}"
        text = file.read_text().replace(fault.old, fault.new)
        file.unlink()  # a hard link to the tree's own file
        file.write_text(text)


def main(names: Sequence[str]) -> int:
    """Run the attacks there. Return 1 if one of them has found nothing, else 0."""
    wanted = list(names or faults())
    others = [name for name in wanted if name not in ENDING]
    found: dict[str, str] = {}
    with copied_tree() as root:
        take_off(root)
        for group in (others, *([name] for name in wanted if name in ENDING)):
            if group:
                found |= found_by(group, root)
    blind = [name for name in wanted if found.get(name, "nothing").startswith(BLIND)]
    print(f"{len(found)} attacks; found nothing: {', '.join(blind) or 'none of them'}")
    return 1 if blind else 0


def found_by(names: Sequence[str], root: Path) -> dict[str, str]:
    """Run these attacks on a head of a copy of the tree; return what each has found."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.attack", *names],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    found = {}
    for line in program.stdout:
        print(line, end="", flush=True)
        if match := LINE.match(line.strip()):
            found[match[1]] = match[2]
    program.wait()
    return found
