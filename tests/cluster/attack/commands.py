"""What data sets, lines of logs and settings do to the commands that read them."""

from __future__ import annotations

import gzip
import os
import pty
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from contract.exit_codes import ExitCode
from entrypoint.run import token as run_token
from tests.cluster.attack.attacks import Attack, Boundary, by
from tests.cluster.attack.targets import ROOT, Scene

MEGABYTE = bytes(1 << 20)
BOMB_SECONDS = 20.0
BOMB_MEMORY = 200 << 20
"""Bytes that a process may have which refuses a bomb."""
EXTRACTS = r"""
import re, sys
from pathlib import Path
from env.prepare.archive import extract_images
from env.prepare.output import PrepareError
try:
    extract_images(Path(sys.argv[1]), Path(sys.argv[1]).with_suffix(".out"))
    print("taken")
except PrepareError:
    print("refused")
# Not ru_maxrss, which begins with the memory of the process that forked this one.
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""
OBEYED = ("\x1b]52;c;ZXZpbA==\x07", "\x1b]0;title\x07", "\x1b[2J", "\x1bc")
"""What writes to the clipboard, renames a window, clears a screen and resets a terminal."""


@by(Boundary.DATA)
def archives(scene: Scene) -> Iterator[str]:
    """Archives of 5 MB that take the memory, the disk or hours, if they are extracted."""
    for number, bomb in enumerate((with_header, with_many_headers, padded)):
        archive = scene.directory / f"bomb-{number}.tar.gz"
        bomb(archive)
        argv = [sys.executable, "-c", EXTRACTS, str(archive)]
        try:
            done = subprocess.run(
                argv, cwd=ROOT, capture_output=True, text=True, timeout=BOMB_SECONDS, check=True
            )
        except subprocess.TimeoutExpired:
            yield f"{bomb.__name__}: it is read for over {BOMB_SECONDS:g} s"
            continue
        except subprocess.CalledProcessError as error:
            yield f"{bomb.__name__}: {error.stderr.splitlines()[-1:]}"
            continue
        said, memory = done.stdout.split()
        if said != "refused":
            yield f"{bomb.__name__}: it is {said}"
        if int(memory) > BOMB_MEMORY:
            yield f"{bomb.__name__}: {int(memory) >> 20} MiB of memory"


def with_header(path: Path) -> None:
    """Its extended header has 300 MiB."""
    _gzipped(path, tarfile.XHDTYPE, 300)


def padded(path: Path) -> None:
    """Its only file is no image, and has 400 MiB."""
    _gzipped(path, tarfile.REGTYPE, 400)


def _gzipped(path: Path, kind: bytes, megabytes: int) -> None:
    member = tarfile.TarInfo("notes.json")
    member.type, member.size = kind, megabytes << 20
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        for _ in range(megabytes):
            file.write(MEGABYTE)


def with_many_headers(path: Path) -> None:
    """Headers of headers of headers: each is read within the one before."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 10
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((member.tobuf() + b"10 a=bcde\n".ljust(512, b"\0")) * 20_000)


@by(Boundary.LOG_LINE)
def on_a_terminal(scene: Scene) -> Iterator[str]:
    """Lines that a job prints, shown by `rollcall logs` on a terminal."""
    log = scene.cluster.run.logs / "planted.log"
    log.write_text("".join(f"{text}a line of the job\n" for text in OBEYED))
    shown = on_terminal(scene, "logs", log.stem)
    if "a line of the job" not in shown:
        yield f"rollcall logs does not show the line: {shown[-200:]!r}"
    yield from (f"rollcall logs sends {text!r} to a terminal" for text in OBEYED if text in shown)
    log.unlink()


def on_terminal(scene: Scene, *words: str) -> str:
    """Return what a command writes to a terminal."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rollcall", *words],
        env=scene.cluster.environment(0) | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    shown = b""
    with suppress(OSError):  # so it ends
        while part := os.read(terminal, 2**16):
            shown += part
    os.close(terminal)
    process.wait(60)
    return shown.decode(errors="replace")


@by(Boundary.SETTINGS)
def settings(scene: Scene) -> Iterator[str]:
    """Settings that would harm the machine, or give a key to the wrong ones."""
    reader = run_token.read_only(scene.token)
    wrong = {
        "ROLLCALL_RUN_DIR": ("/", "/tmp", "/etc/", "/proc/self/fd"),
        "ROLLCALL_RUNTIME_ENV": ("[" * 3000,),
        "ROLLCALL_TOKEN": ("x", "your_token_here"),
        "WANDB_API_KEY": ("your_wandb_api_key_here", "...", "<KEY>", "xxx"),
        "HF_TOKEN": ("hf_xxx", "your_hf_token_here", "hf_...", "<token>"),
    }
    for several in zip_longest(*wrong.values()):  # every fault is said at once
        given = dict(zip(wrong, several, strict=True))
        yield from unless_refused(scene, {name: text for name, text in given.items() if text})
    yield from unless_refused(scene, {"ROLLCALL_TOKEN": reader})
    yield from unless_refused(scene, {"ROLLCALL_PREEMPT_FILE": os.devnull}, "up", "--", "true")
    steps = ("--max_steps", str(10**20))
    yield from unless_refused(scene, {"ROLLCALL_RECIPE": "builtin"}, "plan", "--", *steps)


def unless_refused(scene: Scene, given: Mapping[str, str], *words: str) -> Iterator[str]:
    """Run a command, whose error must name each variable that is given, and each option."""
    words = words or ("plan", "--", "true")
    env = {"ROLLCALL_JOB": "", "ROLLCALL_RUNTIME_ENV": "", **given}
    done = scene.cluster.ask(*words, **env)
    named = {word for word in words if word.startswith("--") and len(word) > 2}
    for name in named or given:
        if done.returncode != ExitCode.USAGE or name not in done.stderr:
            text = given.get(name, " ".join(words))[:40]
            yield f"{name} {text} is not named; the command ends with {done.returncode}"
    if "Traceback" in done.stderr:
        yield f"{', '.join(given)}: a traceback"


ATTACKS: tuple[Attack[Scene], ...] = (archives, on_a_terminal, settings)
