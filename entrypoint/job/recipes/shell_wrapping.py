"""Pure: a command as a guide has it → the command, without what a shell or Ray's client reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from contract.launch.command_lines import PYTHON, variables_before

OPERATOR = re.compile(r"\|\|?|&&?|<|>>?(?!=)\S*|[0-9&]>\S*")
"""A word that a shell would have consumed as syntax, unless it was quoted."""
UV_RUN = ["uv", "run"]
RUNTIME_ENV = ("--runtime-env", "--working-dir")
"""What flags of `ray job submit` begin with that say the job's runtime environment."""


def unwrapped(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the command, and the words that have no effect here.

    Those are `ray job submit … --` before it, with the client's own variables, `uv run` before
    its Python, and a redirection or a pipe behind it.
    """
    rest = list(words)
    dropped: list[str] = []
    _, typed = variables_before(words)
    client = [PurePath(word).name for word in typed[:1]] + typed[1:3]
    if client == ["ray", "job", "submit"] and "--" in rest:
        end = rest.index("--")
        dropped += rest[:end]
        rest = rest[end + 1 :]
    wrapper = _uv_run(rest)
    if wrapper:
        first = len(rest) - len(variables_before(rest)[1])
        dropped += wrapper
        rest = rest[:first] + rest[first + len(wrapper) :]
    if operators := [n for n, word in enumerate(rest) if OPERATOR.fullmatch(word)]:
        dropped += rest[operators[0] :]
        rest = rest[: operators[0]]
    return rest, tuple(dropped)


def _uv_run(words: Sequence[str]) -> list[str]:
    """Return `uv run` with its flags, if a Python follows; else nothing."""
    command = variables_before(words)[1]
    if [PurePath(word).name for word in command[:1]] + command[1:2] != UV_RUN:
        return []
    place = next((n for n, word in enumerate(command) if PYTHON.fullmatch(word)), 0)
    return command[:place]


def no_effect(dropped: Sequence[str], *, submitted: bool) -> list[str]:
    """Return a sentence that names the dropped words, and what replaces them.

    `submitted`: the job is one of a head that waits for jobs.
    """
    if not dropped:
        return []
    instead = "the log is in RUN/logs"
    if any(word.startswith(RUNTIME_ENV) for word in dropped):
        where = "with `rollcall submit --runtime-env`" if submitted else "in ROLLCALL_RUNTIME_ENV"
        instead += f", and a runtime environment is given {where}"
    if UV_RUN[1] in dropped:
        instead += (
            ", and the Python is Rollcall's own, that of PATH if only that one has the program, or "
            "one that is given by its path"
        )
    return [f"{' '.join(dropped)}: no effect here; {instead}"]
