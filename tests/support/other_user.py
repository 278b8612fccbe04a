"""What another local user of this machine can do, tried by a real process of theirs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable

import pytest


def as_nobody(act: Callable[[], object]) -> str:
    """What `act` raised in a process of the user `nobody`; empty if it did not fail."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    user = pwd.getpwnam("nobody")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said
