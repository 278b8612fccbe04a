"""What a program that a policy wrote tries in the sandbox of the reward `code`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.attack.attacks import Attack, Boundary, by
from tests.cluster.attack.targets import ROOT, Scene

PROGRAM = """
import ctypes, os, signal, socket
def reached(what, act):
    try:
        act()
        print(what, flush=True)
    except (OSError, MemoryError):
        pass
def fill():
    for number in range(300):
        with open(f"/dev/shm/{number}-{MARK}", "wb") as file:
            file.write(bytes(1_000_000))
def forks():
    for number in range(500):
        if os.fork() == 0:
            os.setsid()
            signal.pause()
def namespace():
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    if ctypes.CDLL(None).syscall(clone, 0x10000000 | 17, 0, 0, 0, 0) < 0:
        raise OSError
for place in ("/tmp", "/var/tmp", "/dev/shm"):
    try:
        open(f"{place}/planted-{MARK}", "w").write("x")
    except OSError:
        pass
reached("the head's port", lambda: socket.create_connection(("{ADDRESS}", {PORT}), 2))
reached("the token", lambda: open("{TOKEN}").read())
reached("a file of the run", lambda: open("{KEPT}").read())
reached("the head's environment", lambda: open("/proc/{PID}/environ").read(1))
reached("the head, to kill it", lambda: os.kill({PID}, 0))
reached("a namespace of users", namespace)
reached("300 MB of files", fill)
reached("500 processes", forks)
"""
SANDBOXED = """
import sys
from env.rewards import sandbox
limits = sandbox.Limits(cpu_seconds=2.0, wall_seconds=8.0)
print(sandbox.run(sys.stdin.read(), "", limits).output)
"""
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
"""As root in a container, who may make no namespace."""


@by(Boundary.PROGRAM)
def sandboxed(scene: Scene) -> Iterator[str]:
    """The network, files and processes of the run, and more files than allowed."""
    yield from ran(scene)


@by(Boundary.PROGRAM)
def sandboxed_without_rights(scene: Scene) -> Iterator[str]:
    """The same where the kernel allows no namespace, as in most containers."""
    if os.geteuid() == 0:
        yield from ran(scene, *WITHOUT_RIGHTS)


def ran(scene: Scene, *around: str) -> Iterator[str]:
    mark = f"of-{os.getpid()}-{len(around)}"
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        (kept := Path(directory) / "kept").write_text("x")
        kept.chmod(0o644)  # as a user might leave it: no mode protects it
        words = {
            "MARK": mark,
            "ADDRESS": scene.head.address,
            "PORT": str(scene.head.port),
            "TOKEN": str(scene.cluster.run.token),
            "KEPT": str(kept),
            "PID": str(scene.head.process.pid),
        }
        program = PROGRAM.replace("{MARK}", mark)
        for name, word in words.items():
            program = program.replace(f"{{{name}}}", word)
        done = subprocess.run(
            [*around, sys.executable, "-c", SANDBOXED],
            cwd=ROOT,
            input=program,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if done.returncode:
        yield f"the sandbox ends with {done.returncode}: {done.stderr[-200:]}"
    yield from (f"a program reaches {line}" for line in done.stdout.splitlines() if line)
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        if left := list(Path(place).glob(f"*-{mark}")):
            yield f"a program leaves {len(left)} files in {place}"
            for path in left:
                path.unlink()


ATTACKS: tuple[Attack[Scene], ...] = (sandboxed, sandboxed_without_rights)
