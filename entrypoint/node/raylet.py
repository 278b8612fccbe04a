"""Ray's daemon on this node, the raylet: why it ended, and the ports that it waits for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from contract.files.lines import backwards
from contract.run_dir import write_atomically
from entrypoint.job.failures.tracebacks import last_traceback
from entrypoint.machine import port_holders
from entrypoint.node.ray_start_errors import LONGEST_WORDS, last_words

DAEMON = "raylet"
FATAL = re.compile(
    r"Check failed|^\[.*? [CF] \d+ \d+\]|Address already in use|Timed out waiting for"
)
"""Is in the line in which one of Ray's daemons says why it ends."""
PREFIX = re.compile(r"^\[[^\]]*\]\s*(?:\(\w+\)\s*)?(?:\S+\.(?:cc|h):\d+:\s*)?")
"""Time, process and place in Ray's source."""
UNEXPECTED = re.compile(r"An unexpected system state has occurred\..*?work with you to fix it\. ")
BOUND = re.compile(r"[Aa]ddress already in use|specified port")
PORT = re.compile(r"\b\d{4,5}\b")
LAST_LINES = 2_000
"""Lines of a log in which the reason is looked for, from its end."""
DAEMON_LOGS = ("raylet.err", "raylet.out", "gcs_server.err", "gcs_server.out")
AGENT_LOGS = ("dashboard_agent.log", "runtime_env_agent.log", "runtime_env_agent.err")
"""The agents end with the raylet, and the raylet ends with them."""
PORT_FILES = {
    "metrics_agent_port": 2,
    "dashboard_agent_listen_port": 3,
    "metrics_export_port": 4,
    "runtime_env_agent_port": 5,
}
"""File in which the raylet waits 15 s for a port of its agents → the port's place among ours."""


@dataclass(frozen=True, slots=True)
class Raylet:
    process: psutil.Process
    session: Path
    logs: Path
    id: str
    """Ray's identifier of the node."""

    @property
    def lives(self) -> bool:
        try:
            return bool(self.process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    def tell_ports(self, first: int) -> None:
        """Write the ports of the raylet's agents, which are known: `first` is the node's first.

        The raylet ends if an agent has not written its port within 15 s, a limit that cannot be
        set. On a busy machine an agent imports longer than that. It writes the same file later.
        """
        for name, place in PORT_FILES.items():
            path = self.session / f"{name}_{self.id}"
            with suppress(OSError):
                if not path.exists():
                    write_atomically(path, str(first + place))

    def why_ended(self) -> str:
        """Return what the raylet and its agents said last, in a line; "" if they said nothing."""
        said = next(filter(None, (_fatal(self.logs / name) for name in DAEMON_LOGS)), "")
        agents = (_fatal(self.logs / name) or _error(self.logs / name) for name in AGENT_LOGS)
        words = [said, next(filter(None, agents), "")]
        told = "; ".join(dict.fromkeys(word for word in words if word))[:LONGEST_WORDS]
        return f"{told}{_holder(told)}" if told else ""

    @property
    def silence(self) -> str:
        return f"it said nothing; its logs are in {self.logs}"


def find(processes: Iterable[psutil.Process]) -> Raylet | None:
    """Return the raylet among these processes."""
    for process in processes:
        with suppress(psutil.Error):
            line = process.cmdline()
            if line and Path(line[0]).name == DAEMON:
                options = dict(word.split("=", 1) for word in line if "=" in word)
                return _of(process, options)
    return None


def _of(process: psutil.Process, options: Mapping[str, str]) -> Raylet | None:
    names = ("--session_dir", "--log_dir", "--node_id")
    session, logs, node = (options.get(name, "") for name in names)
    return Raylet(process, Path(session), Path(logs), node) if session and logs and node else None


def _fatal(log: Path) -> str:
    """Return the last line of a log in which a daemon says why it ends."""
    line = next((line for line in _newest_lines(log) if FATAL.search(line)), "")
    return UNEXPECTED.sub("", PREFIX.sub("", line)).strip()


def _error(log: Path) -> str:
    """Return the error of the last traceback in a log."""
    lines = _newest_lines(log)[::-1]
    begin = last_traceback(lines)
    return "" if begin is None else last_words("\n".join(lines[begin:]))


def _newest_lines(log: Path) -> list[str]:
    """Return the last lines, the last one first; [] if there is no such log."""
    try:
        with log.open("rb") as file:
            found = backwards(file, incomplete=True)
            newest = islice((line for _, line in found), LAST_LINES)
            return [line.decode(errors="replace").rstrip() for line in newest]
    except OSError:
        return []


def _holder(words: str) -> str:
    """Return who listens at the port that is taken, as an addition to a sentence."""
    if BOUND.search(words) is None:
        return ""
    holders = port_holders.holders()
    for number in map(int, PORT.findall(words)):
        with suppress(psutil.Error):
            if number in holders:
                return f" (port {number} is held by {port_holders.name_of(holders[number])})"
    return ""
