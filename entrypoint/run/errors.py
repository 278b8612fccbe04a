"""Errors of the system that end a node: in a sentence, with a remedy, and as its exit code."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from contract.exit_codes import ExitCode

OF_THE_NODE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Limits of the node, whatever path the call named."""

REFUSED = "give user {user} the right to it, or run as its owner (a container: --user UID:GID)"
LACKED = "put it on a file system that has this call"
MISPLACED = "make it, or correct the path"
PERMANENT = {
    errno.EPERM: REFUSED,
    errno.EACCES: REFUSED,
    errno.EROFS: "mount its file system for writing",
    **dict.fromkeys((errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV), LACKED),
    **dict.fromkeys((errno.ENOLCK, errno.ENOTTY, errno.EXDEV), LACKED),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), MISPLACED),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), MISPLACED),
    errno.ENOEXEC: "install it for this machine's processor",
}
"""Errors that another try would meet again, and what to do."""
TEMPORARY = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EIO: "see the log of its disk or server",
    errno.ESTALE: "mount it again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.ENOMEM: "give the node more memory",
    errno.EADDRINUSE: "end the process that listens there",
}


def describe(error: OSError) -> str:
    file = f"{error.filename}: " if error.filename else ""
    return f"{file}{error.strerror or error}"


def remedy(error: OSError) -> str:
    """What the user can do; "" if the error's number does not say it."""
    known = (PERMANENT | TEMPORARY).get(error.errno or 0, "")
    return known.format(user=os.geteuid())


def explain(error: OSError) -> str:
    """The error in a sentence, with its remedy."""
    what = remedy(error)
    return f"{describe(error)}: {what}" if what else describe(error)


def exit_code(error: OSError, run_dir: Path) -> ExitCode:
    """73 for a file of the run directory; 76 if another try would fail too; else 75."""
    name = error.filename
    of_the_run = isinstance(name, str) and Path(name).is_relative_to(run_dir)
    if of_the_run and error.errno not in OF_THE_NODE:
        return ExitCode.RUN_DIR
    # Errors without a number are this program's own, of directories that are not private.
    permanent = error.errno in PERMANENT or isinstance(error, PermissionError)
    return ExitCode.UNFIT if permanent else ExitCode.RETRY
