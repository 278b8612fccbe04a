"""Stands in for Python: it asks a node's warm process for Ray's workers and for the driver.

    python -IS shim.py HOME PYTHON ARGUMENT…

So it starts in milliseconds. It passes signals on to the fork, and ends as the fork ends. For all
other programs, and without a warm process, it becomes PYTHON.
"""

# ruff: noqa: PTH109 - pathlib takes as long to import as all the rest
from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

SETUP = "/ray/_private/workers/setup_worker.py"
WORKER = "/ray/_private/workers/default_worker.py"
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
TRAINER = ["-P", "-m", "trainer"]
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
STANDBY = "ROLLCALL_STANDBY_RANK"
"""As contract.launch.standby_ranks says it."""
WORKER_SECONDS, TRAINER_SECONDS = 15.0, 60.0
"""To wait for an answer. Ray gives a worker twice as long until it registers."""


def main() -> NoReturn:
    home, python, *words = sys.argv[1:]
    arguments = unwrapped(words, python)
    if arguments[:3] == TRAINER:
        stand_in(arguments, home, TRAINER_SECONDS)
    elif "".join(arguments[:1]).endswith(WORKER):
        stand_in(arguments, home, WORKER_SECONDS)
    os.execv(sys.executable, [python, *arguments])


def unwrapped(arguments: list[str], python: str) -> list[str]:
    """Without Ray's program that imports Ray to set variables, if it has nothing else to do."""
    if not "".join(arguments[:1]).endswith(SETUP):
        return arguments
    said = next((word for word in arguments if word.startswith(CONTEXT)), CONTEXT + "{}")
    context: dict[str, Any] = json.loads(said.removeprefix(CONTEXT))
    variables: dict[str, str] = context.pop("env_vars", {})
    if context.pop("py_executable", python) != python or any(context.values()):
        return arguments
    os.environ.update(variables)
    return [word for word in arguments[1:] if not word.startswith((CONTEXT, LANGUAGE))]


def stand_in(arguments: list[str], home: str, patience: float) -> None:
    """End as the fork that the warm process makes. Returns if it makes none.

    A standby rank has the node start the warm process, and waits for it.
    """
    request = {"argv": arguments, "environ": dict(os.environ), "directory": os.getcwd()}
    file = os.memfd_create("request")
    os.write(file, json.dumps(request).encode())
    until = time.monotonic() + (patience if STANDBY in os.environ else 0.0)
    while not (warm := connected(home, patience)):
        if time.monotonic() >= until:
            return
        with contextlib.suppress(OSError):
            os.close(os.open(home + "/wanted", os.O_CREAT | os.O_WRONLY, 0o600))
        time.sleep(0.1)
    try:
        socket.send_fds(warm, [b"."], [0, 1, 2, file])
        if not warm.recv(1):
            return
    except OSError:
        return
    warm.settimeout(None)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: warm.sendall(bytes([number])))
    code = os.waitstatus_to_exitcode(int(warm.recv(16) or 256))
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def connected(home: str, patience: float) -> socket.socket | None:
    warm = socket.socket(socket.AF_UNIX)
    warm.settimeout(patience)
    try:
        warm.connect(home + "/socket")
    except OSError:
        return None
    return warm


if __name__ == "__main__":
    main()
