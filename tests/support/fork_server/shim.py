"""The `python` of `forking_python`: it asks the fork server for workers of Ray and for trainers.

The first line of its copy runs it with `-I -S`, so that it starts in milliseconds. It passes
signals on to the fork, and ends as the fork ends. For all other programs, it becomes Python; Ray's
dashboard runs as in a node of ours.
"""

# ruff: noqa: PTH109, PTH120 - pathlib takes as long to import as all the rest
from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

SETUP = "/ray/_private/workers/setup_worker.py"
WORKER = "/ray/_private/workers/default_worker.py"
DASHBOARD = "/ray/dashboard/dashboard.py"
OF_DASHBOARD = ["-P", "-m", "trainer.cluster.ray_dashboard"]
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
TRAINER = ["-P", "-m", "trainer"]
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def main() -> NoReturn:
    arguments = unwrapped(sys.argv[1:])
    if arguments[:3] == TRAINER or "".join(arguments[:1]).endswith(WORKER):
        stand_in(arguments)
    if "".join(arguments[:1]).endswith(DASHBOARD):
        arguments[:0] = OF_DASHBOARD
    os.execv(sys.executable, [sys.argv[0], *arguments])


def home() -> str:
    """Return the directory of the environment."""
    return os.path.dirname(os.path.dirname(sys.argv[0]))


def unwrapped(arguments: list[str]) -> list[str]:
    """Without Ray's program that imports Ray to set variables, if it has nothing else to do."""
    if not "".join(arguments[:1]).endswith(SETUP):
        return arguments
    said = next((word for word in arguments if word.startswith(CONTEXT)), CONTEXT + "{}")
    context: dict[str, Any] = json.loads(said.removeprefix(CONTEXT))
    variables: dict[str, str] = context.pop("env_vars", {})
    if context.pop("py_executable", sys.argv[0]) != sys.argv[0] or any(context.values()):
        return arguments
    os.environ.update(variables)
    return [word for word in arguments[1:] if not word.startswith((CONTEXT, LANGUAGE))]


def stand_in(arguments: list[str]) -> None:
    """End as the fork that the server makes. Returns if it makes none."""
    request = {"argv": arguments, "environ": dict(os.environ), "directory": os.getcwd()}
    file = os.memfd_create("request")
    os.write(file, json.dumps(request).encode())
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(home() + "/socket")
        socket.send_fds(server, [b"."], [0, 1, 2, file])
        if not server.recv(1):
            return
    except OSError:
        return
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    code = os.waitstatus_to_exitcode(int(server.recv(16) or 256))
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
