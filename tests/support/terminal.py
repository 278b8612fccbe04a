"""A program in a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress


@contextmanager
def in_terminal(
    argv: list[str], env: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program in a terminal of its own, and that terminal, to be closed."""
    ours, terminal = pty.openpty()
    program = subprocess.Popen(argv, env=env, preexec_fn=lambda: os.login_tty(terminal))
    os.close(terminal)
    try:
        yield program, ours
    finally:
        program.kill()
        program.wait()


def read_to_end(terminal: int) -> str:
    """Return what the program writes until its terminal ends with it."""
    said = b""
    with suppress(OSError):
        while part := os.read(terminal, 4096):
            said += part
    return said.decode()
