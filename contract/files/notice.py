"""A file whose appearance is a message, in a place where other users may make files, too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from contract.files import private_dir

REMEDY = "name a file in a directory of this user alone, which may be missing"


def unusable(path: Path) -> str:
    """Return why no message can come to this path; "" if one can. Make its directory, if missing.

    A directory that this user may not make may still appear.
    """
    try:
        if path.parent.exists():
            private_dir.check_place(path)
        else:
            private_dir.make(path.parent)
        if not stat.S_ISREG(path.lstat().st_mode):
            return "is there, and is not a regular file"
    except private_dir.NotPrivateError as error:
        return f"is no safe place: {error.problem}"
    except OSError:
        pass
    return ""


def refused(path: Path) -> str:
    """Return why what is there is no message; "" if it is one. Raises OSError if nothing is there.

    A message is a regular file with one name, which root or this process's user has made: another
    user can link to a file that is not theirs.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if not private_dir.is_trusted(status.st_uid):
        return f"user {status.st_uid} has made it, and this node runs as user {os.geteuid()}"
    if status.st_nlink > 1:
        return f"{status.st_nlink} names lead to it"
    private_dir.check_place(path)
    return ""
