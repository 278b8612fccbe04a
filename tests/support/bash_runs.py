"""Scripts run by bash itself, with stub programs that write down their words.

The stubs are all that a script finds, beside a few programs that make text. It runs without a
network and without rights where this process may take them away, and for ten seconds at most.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

STUBS = frozenset([
    "a", "accelerate", "apt-get", "conda", "curl", "deepspeed", "docker", "git", "hf", "mkdir",
    "module", "mpirun", "nohup", "npu-smi", "nvidia-smi", "pip", "pip3", "podman", "python",
    "python3", "ray", "huggingface-cli", "sbatch", "scontrol", "sleep", "srun", "ssh",
    "timeout", "torchrun", "trl", "uv", "wandb", "wget",
])  # fmt: skip
REAL = frozenset([
    "basename", "cat", "cut", "date", "dirname", "grep", "head", "hostname", "nproc",
    "readlink", "realpath", "sed",
    "seq", "tee", "tr", "wc",
])  # fmt: skip
END = "\x01"
"""Written behind a command's last word."""
STUB = """#!{bash}
printf '%s\\0' "${{0##*/}}" "$@" $'\\1' >> "{log}"
"""
"""By one printf, since programs of the background write at the same time."""
OTHER_USER = 65534
SECONDS = 10
BASH = shutil.which("bash") or "bash"


class Machine:
    """A folder with the programs that scripts find, and the directory in which they start."""

    def __init__(self, folder: Path) -> None:
        self.home, self.script = folder / "home", folder / "script.sh"
        self._programs, self._log = folder / "programs", folder / "log"
        self.home.mkdir()
        self._programs.mkdir()
        self._log.touch()
        stub = self._programs / ".stub"
        stub.write_text(STUB.format(bash=BASH, log=self._log))
        stub.chmod(0o755)
        for name in STUBS:
            (self._programs / name).symlink_to(stub)
        for name in REAL:
            if found := shutil.which(name):
                (self._programs / name).symlink_to(found)
        self._waits = folder / "waits.sh"
        self._waits.write_text("trap wait EXIT\n")
        if os.geteuid() == 0:
            for path in (folder, self.home, self._log):
                os.chown(path, OTHER_USER, OTHER_USER)
        self._apart = _without_rights()

    def commands(
        self, text: str, environment: Mapping[str, str] | None = None, *arguments: str
    ) -> list[list[str]]:
        """Return the commands that a script starts, as words, in their order."""
        self.script.write_text(text)
        self._log.write_text("")
        argv = [*self._apart, BASH, "--norc", str(self.script), *arguments]
        # What a script leaves in the background would end with it, before it has written its words.
        given = self._environment(environment) | {"BASH_ENV": str(self._waits)}
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(argv, cwd=self.home, env=given, timeout=SECONDS,
                           stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
        said = self._log.read_bytes().decode(errors="replace")
        return [one.split("\0")[:-1] for one in said.split(f"{END}\0")[:-1]]

    def shown(
        self, quoted: Iterable[str], environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return words that were quoted for a shell, as the shell has them."""
        argv = [BASH, "--norc", "-c", f"printf '%s\\0' {' '.join(quoted)}"]
        done = subprocess.run(argv, cwd=self.home, env=self._environment(environment), text=True,
                              capture_output=True, check=True)  # fmt: skip
        return done.stdout.split("\0")[:-1]

    def _environment(self, given: Mapping[str, str] | None) -> dict[str, str]:
        return {"PATH": str(self._programs), "HOME": "/home/me", **(given or {})}


def _without_rights() -> list[str]:
    """Return the beginning of a command that takes network and rights away, if this process may."""
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if os.geteuid() != 0 or not (unshare and setpriv):
        return []
    apart = [unshare, "--net", "--pid", "--fork", "--kill-child", "--"]
    if subprocess.run([*apart, setpriv, "--help"], capture_output=True, check=False).returncode:
        apart = []
    user = str(OTHER_USER)
    return [
        *apart,
        setpriv,
        f"--reuid={user}",
        f"--regid={user}",
        "--clear-groups",
        "--no-new-privs",
    ]


PRELUDE = """a() { printf '%s\\0' "$@"; printf '\\1\\0'; }
u() { return $U; }
"""


def each(scripts: Sequence[str], environment: Mapping[str, str]) -> list[list[list[str]]]:
    """Return for each of many small scripts the words that its commands `a` get.

    A single bash runs them, each in a subshell, without a program: `a` is a function, and `u` one
    that returns $U.
    """
    lines = (
        f"( eval \"$S{place}\" ) 2>/dev/null; printf '\\2\\0'\n" for place in range(len(scripts))
    )
    texts = {f"S{place}": text for place, text in enumerate(scripts)}
    path = {"PATH": "/usr/bin:/bin", "HOME": "/home/me"}
    argv = [BASH, "--norc", "-c", PRELUDE + "".join(lines)]
    given = {**path, **environment, **texts}
    done = subprocess.run(argv, env=given, capture_output=True, text=True, timeout=60)
    runs = done.stdout.split("\2\0")[:-1]
    return [[one.split("\0")[:-1] for one in run.split("\1\0")[:-1]] for run in runs]
