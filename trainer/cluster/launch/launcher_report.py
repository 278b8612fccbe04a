"""Reads what accelerate's launcher says of the rank that failed: it ends with exit code 1 itself.

The launcher is torch's agent, whose ranks have a prefix. For a single rank it only waits, and the
rank has no prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FAILED = 1
"""Exit code of the launcher if a rank has failed."""
SPEAKER = re.compile(r"\[default\d+\]:")
"""Prefix of a rank's line, with its local rank."""
OWN = re.compile(r"\s|Traceback \(|[IWE]\d{4} ")
"""Start of a line of the launcher's log, or of its traceback before the error."""
ERROR = re.compile(r"torch\.distributed\.elastic\.\S+ChildFailedError: |subprocess\.CalledProcess")
"""Start of the launcher's error. What follows is a table of torch's agent, the first failure last.
"""
RANK = re.compile(r"  rank      : (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
CODE = re.compile(
    r"  exitcode  : (?P<agents>-?\d+) \(pid: \d+\)"
    r"|.* returned non-zero exit status (?P<status>\d+)\.$"
    r"|.* died with (?:<Signals\.\w+: |unknown signal )(?P<signal>\d+)>?\.$"
)


@dataclass(slots=True)
class LauncherReport:
    exit_code: int | None = None
    """Of the rank that failed first, negative for a signal; None: the launcher has not said."""
    rank: str = ""
    """The number of that rank; "" if it is the only one."""
    speaker: str = ""
    """The prefix of its lines."""
    _begun: bool = False

    def read(self, line: str) -> str | None:
        """Return the prefix of a rank's line, "" without one; None for a line of the launcher."""
        self._begun = self._begun or ERROR.match(line) is not None
        if not self._begun:
            found = SPEAKER.match(line)
            return None if OWN.match(line) else found[0] if found else ""
        if found := RANK.match(line):
            self.rank, self.speaker = found["rank"], f"[default{found['local']}]:"
        elif found := CODE.match(line):
            code = found["agents"] or found["status"] or f"-{found['signal']}"
            self.exit_code = int(code)
        return None
