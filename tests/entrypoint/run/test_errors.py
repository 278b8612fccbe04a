"""The exit code and the remedy of an error of the system that ends a node."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.run import errors

RUN = Path("/shared/run")
PERMANENT = ("EPERM", "EACCES", "EROFS", "ENOSYS", "ENOENT", "ENOTDIR", "ELOOP", "ENAMETOOLONG")
OTHERS = ("EINVAL", "EOPNOTSUPP", "ENOLCK", "ENODEV", "EISDIR", "EXDEV", "ENOEXEC")
TEMPORARY = ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EMFILE", "ENFILE", "ENOMEM", "EADDRINUSE")
UNSAID = ("ECONNREFUSED", "EHOSTUNREACH", "ETIMEDOUT", "EAGAIN", "EINTR", "EBUSY")


def error(name: str, path: str | None = "/tmp/ray/file") -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("name", [*PERMANENT, *OTHERS])
def test_what_another_try_would_meet_again_makes_the_node_unfit_and_has_a_remedy(name: str) -> None:
    assert errors.exit_code(error(name), RUN) == ExitCode.UNFIT
    said = errors.explain(error(name))
    assert said.startswith(f"/tmp/ray/file: {os.strerror(getattr(errno, name))}: ")
    assert errors.remedy(error(name))


@pytest.mark.parametrize("name", [*TEMPORARY, *UNSAID])
def test_what_may_pass_is_worth_another_try(name: str) -> None:
    assert errors.exit_code(error(name), RUN) == ExitCode.RETRY
    assert bool(errors.remedy(error(name))) == (name in TEMPORARY)


def test_errors_of_the_run_directory_have_its_own_code_but_for_limits_of_the_node() -> None:
    for name in (*PERMANENT, *OTHERS, "ENOSPC", "EIO"):
        assert errors.exit_code(error(name, "/shared/run/journal.jsonl"), RUN) == ExitCode.RUN_DIR
    for name in ("EMFILE", "ENOMEM"):
        assert errors.exit_code(error(name, "/shared/run/journal.jsonl"), RUN) == ExitCode.RETRY


def test_a_directory_that_is_not_private_is_permanent_though_its_error_has_no_number() -> None:
    refused = PermissionError("/tmp/rollcall-0 is another user's: have it removed")
    assert errors.exit_code(refused, RUN) == ExitCode.UNFIT
    assert errors.explain(refused) == str(refused)
