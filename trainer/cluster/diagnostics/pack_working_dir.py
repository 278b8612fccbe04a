"""Makes the archive of a job's working directory, as `ray job submit` does.

    python -m trainer.cluster.diagnostics.pack_working_dir DIRECTORY --into FOLDER [--excludes JSON]

Leaves out what Ray leaves out by default (`.git`, `.venv`, `venv`, `__pycache__`), and what
`.gitignore`, `.rayignore` and the patterns in `excludes` name. Run directories and files with keys
are never in it. Prints `package`, the archive's path, whose name is a hash of the content, and
`left_out`, the paths of run directories and of files with keys, as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from contract.run_dir import RunFiles

MARKER = ".rollcall"
"""An empty file of each archive. From an archive by URI that has a single directory, Ray takes that
directory away."""
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
LARGEST_KEY_FILE = 64 * 1024
"""Bytes of a file that may be one of keys (PEM)."""
BUNDLE = re.compile(r"rollcall-.*\.(tar\.gz|tgz)")
"""Name that `rollcall bundle` gives to its archive."""
SPECIAL = re.compile(r"([\\*?\[\]!# ])")
"""What patterns of `.gitignore` read in their own way (gitignore(5))."""
_OF_A_RUN = RunFiles(Path())
KEY_FILES = frozenset({_OF_A_RUN.token.name, _OF_A_RUN.retired_tokens.name})
RUNS_OWN = frozenset(
    path.name
    for path in (
        *(_OF_A_RUN.logs, _OF_A_RUN.jobs, _OF_A_RUN.packages, _OF_A_RUN.checkpoints),
        *(_OF_A_RUN.leases, _OF_A_RUN.scratch, _OF_A_RUN.kept),
    )
)
"""Directories of a run, for a working directory that is a run directory itself."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--excludes", type=json.loads, default=[])
    options = parser.parse_args()
    try:
        package, left_out = pack(options.directory, options.into, options.excludes)
    except UnicodeEncodeError as error:  # an archive's names are UTF-8
        file = os.fsencode(error.object)
        sys.exit(f"the name of {file!r} is not UTF-8: rename it, or leave it out by .rayignore")
    print(json.dumps({"package": str(package), "left_out": left_out}))
    return 0


def pack(directory: Path, into: Path, excludes: list[str]) -> tuple[Path, list[str]]:
    """Return the archive, in `into`, and the private paths below the directory that it lacks.

    An archive itself is copied there. Raises OSError.
    """
    # Ray's Python API has no such call without a cluster. It does nothing if the file is there.
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    excludes = [*get_runtime_env_default_excludes(), *excludes]
    private = [] if directory.is_file() else _private_paths(directory.absolute(), excludes)
    excludes += ["/" + SPECIAL.sub(r"\\\1", path) for path in private]
    with tempfile.TemporaryDirectory(dir=into) as temporary:
        archive = Path(temporary) / "package.zip"
        if directory.is_file():
            shutil.copyfile(directory, archive)
        create_package(str(directory), archive, include_gitignore=True, excludes=excludes)
        with zipfile.ZipFile(archive, "a") as file:
            if MARKER not in file.namelist():
                file.writestr(zipfile.ZipInfo(MARKER), "")
        with archive.open("rb") as content:
            name = f"_ray_pkg_{hashlib.file_digest(content, 'sha256').hexdigest()}.zip"
        return archive.replace(into / name), private


def _private_paths(root: Path, excludes: list[str]) -> list[str]:
    """Return the paths below `root` of run directories and of files with keys, in their order.

    What the patterns leave out already is not among them. Raises OSError.
    """
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    found: dict[Path, str] = {}

    def look(path: Path) -> None:
        if path != root and _is_private(path, root):
            found[path] = str(path.relative_to(root))

    # Ray's own walk, so that the same files are seen as are packed
    patterns = [_get_excludes(root, excludes), lambda path: path.parent in found]
    _dir_travel(root, patterns, look, include_gitignore=True)
    return sorted(found.values())


def _is_private(path: Path, root: Path) -> bool:
    """Return whether a path is a run directory, a file with keys, or a run's own part of `root`."""
    if path.is_dir():
        own = path.parent == root and RunFiles(root).is_there and path.name in RUNS_OWN
        return own or RunFiles(path).is_there
    return path.name in KEY_FILES or bool(BUNDLE.fullmatch(path.name)) or _has_key(path)


def _has_key(path: Path) -> bool:
    """Return whether a file is PEM with a private key."""
    if not path.is_file() or path.stat().st_size > LARGEST_KEY_FILE:
        return False
    content = path.read_bytes()
    return content.lstrip().startswith(b"-----BEGIN ") and bool(PRIVATE_KEY.search(content))


if __name__ == "__main__":
    sys.exit(main())
