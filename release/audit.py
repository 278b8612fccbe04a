"""`make audit`: fails if an advisory is known on a locked package and is not accepted.

    python release/audit.py [LOCK…]

It asks the database of OSV by pip-audit, package by package; OSV_URL names another address of it.
What is accepted stands in `release/advisories.toml`. Exit codes: 1 if advisories are left or a row
of that file is wrong, 69 if the database did not answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ACCEPTED = Path(os.environ.get("ADVISORIES", ROOT / "release/advisories.toml"))
SHORTEST_REASON = 20
FOUND, NO_ANSWER = 1, 69


@dataclass(frozen=True, slots=True)
class Accepted:
    """A row of the file."""

    id: str
    package: str
    why: str
    until: date

    def fault(self, today: date) -> str:
        """Return what is wrong with the row; "" if nothing is."""
        if len(self.why) < SHORTEST_REASON:
            return f"{self.id}: `why` gives no reason"
        return f"{self.id}: accepted until {self.until}" if self.until <= today else ""


@dataclass(frozen=True, slots=True)
class Advisory:
    package: str
    version: str
    ids: frozenset[str]
    fixed_in: str

    def __str__(self) -> str:
        fixed = f"fixed in {self.fixed_in}" if self.fixed_in else "no version has a fix"
        return f"{self.package} {self.version}: {' '.join(sorted(self.ids))}, {fixed}"


def main(locks: Sequence[Path]) -> int:
    today = datetime.now(UTC).date()
    accepted = [Accepted(**row) for row in tomllib.loads(ACCEPTED.read_text())["accepted"]]
    faults = [fault for row in accepted if (fault := row.fault(today))]
    found: dict[Advisory, list[str]] = {}
    for lock in locks:
        try:
            for advisory in audited(lock):
                found.setdefault(advisory, []).append(lock.name)
        except NoAnswerError as error:
            print(f"{lock.name}: not audited: {error}", file=sys.stderr)
            return NO_ANSWER
    known = {(row.package, row.id) for row in accepted}
    left = [one for one in found if not any((one.package, name) in known for name in one.ids)]
    here = {(one.package, name) for one in found for name in one.ids}
    for row in accepted:
        if (row.package, row.id) not in here:
            print(f"{row.id}: no lock has a version of {row.package} that it is about: remove it")
    for advisory in left:
        print(f"{advisory} ({', '.join(found[advisory])})")
    for fault in faults:
        print(f"{ACCEPTED.name}: {fault}")
    print(f"{len(locks)} locks, {len(found)} advisories, {len(found) - len(left)} of them accepted")
    return FOUND if left or faults else 0


class NoAnswerError(Exception):
    """The database did not answer, or pip-audit could not read a lock."""


def audited(lock: Path) -> Iterator[Advisory]:
    """Yield what is known of a lock's packages. Raises NoAnswerError."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--strict"]
    command += ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"]
    if url := os.environ.get("OSV_URL"):
        command += ["--osv-url", url]
    done = subprocess.run([*command, "--requirement", lock], capture_output=True, text=True)
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["pip-audit said nothing"]
        raise NoAnswerError(lines[-1]) from None
    for row in rows:
        for known in row.get("vulns", []):
            yield advisory_of(row, known)


def advisory_of(row: dict[str, Any], known: dict[str, Any]) -> Advisory:
    ids = frozenset([known["id"], *known["aliases"]])
    return Advisory(row["name"], row["version"], ids, " ".join(known["fix_versions"]))


if __name__ == "__main__":
    sys.exit(
        main([Path(name) for name in sys.argv[1:]] or sorted(ROOT.glob("requirements/*.lock")))
    )
