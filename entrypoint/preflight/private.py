"""Can other users of this machine change or read what only this node may?"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from contract.files import private_dir
from contract.run_dir import RunFiles
from entrypoint.config.check_names import CheckName
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict, worst

OTHER_HOME = "set ROLLCALL_RAY_TEMP_DIR to a directory that does not exist yet"


def private(context: Context) -> Finding:
    """Read owners and modes, as they are, of Ray's directory, the run directory and the token."""
    settings = context.settings
    run = RunFiles(settings.run_dir)
    found = [
        *_of_ray(settings.ray_home, settings.ray_dir),
        *_of_run_dir(run.root),
        *_of_token(run.token),
    ]
    return worst(found) if found else Finding(Verdict.PASS, f"{settings.ray_home} is private")


def _of_ray(home: Path, ray_dir: Path) -> Iterator[Finding]:
    """Ray runs the programs that lie in its directory, and writes to the files there."""
    try:
        private_dir.check_place(home)
        private_dir.check(home)
        if ray_dir.is_symlink():
            yield Finding(Verdict.FAIL, f"{ray_dir} is a link", f"remove it, or {OTHER_HOME}")
    except FileNotFoundError:
        return  # it is made with the right mode
    except private_dir.NotPrivateError as error:
        yield Finding(Verdict.FAIL, error.problem, f"{error.remedy}, or {OTHER_HOME}")
    except OSError as error:
        yield Finding(Verdict.FAIL, f"{home}: {error.strerror}", OTHER_HOME)


def _of_run_dir(path: Path) -> Iterator[Finding]:
    with suppress(OSError):  # host.run_dir tells it
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not private_dir.is_of_pod(path):
            evidence = f"every user of the machine may change {path} ({stat.filemode(mode)})"
            yield Finding(Verdict.WARN, evidence, f"chmod o-w {path}")


def _of_token(path: Path) -> Iterator[Finding]:
    with suppress(OSError):
        mode = path.lstat().st_mode
        if mode & private_dir.OTHERS:
            evidence = f"other users may read the token {path} ({stat.filemode(mode)})"
            yield Finding(Verdict.WARN, evidence, f"chmod 600 {path}")


CHECKS = (
    Check(
        CheckName.HOST_PRIVATE,
        "can other users reach Ray's files or the token?",
        private,
        timeout=20.0,
    ),
)
