"""Makes the archive of a job's working directory, as `ray job submit` does.

    python -m trainer.cluster.diagnostics.pack_working_dir DIRECTORY --into FOLDER [--excludes JSON]

Leaves out what Ray leaves out by default (`.git`, `.venv`, `venv`, `__pycache__`), and what
`.gitignore`, `.rayignore` and the patterns in `excludes` name. Prints the archive's
path; its name is a hash of the content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

MARKER = ".rollcall"
"""An empty file of each archive. From an archive by URI that has a single directory, Ray takes that
directory away."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--excludes", type=json.loads, default=[])
    options = parser.parse_args()
    try:
        print(pack(options.directory, options.into, options.excludes))
    except UnicodeEncodeError as error:  # an archive's names are UTF-8
        file = os.fsencode(error.object)
        sys.exit(f"the name of {file!r} is not UTF-8: rename it, or leave it out by .rayignore")
    return 0


def pack(directory: Path, into: Path, excludes: list[str]) -> Path:
    """Return the archive, in `into`; an archive itself is copied there. Raises OSError."""
    # Ray's Python API has no such call without a cluster. It does nothing if the file is there.
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    excludes = [*get_runtime_env_default_excludes(), *excludes]
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
        return archive.replace(into / name)


if __name__ == "__main__":
    sys.exit(main())
