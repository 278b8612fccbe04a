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
    with copied_tree() as root:
        take_off(root)
        done = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.attack", *names],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert done.stdout is not None
        found: dict[str, str] = {}
        for line in done.stdout:
            print(line, end="", flush=True)
            if match := LINE.match(line.strip()):
                found[match[1]] = match[2]
        done.wait()
    blind = [name for name in names or faults() if found.get(name, "nothing").startswith(BLIND)]
    print(f"{len(found)} attacks; found nothing: {', '.join(blind) or 'none of them'}")
    return 1 if blind or not found else 0
