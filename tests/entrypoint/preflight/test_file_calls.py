"""What a storage that refuses a system call, or is slow with it, is said to lack."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from entrypoint.preflight import file_calls
from tests.support import failing_calls

REFUSED = {
    "mkdir": ("EROFS", "be written (mkdir)", "mount its file system for writing"),
    "create": ("EIO", "take a file", "see the log of its disk or server"),
    "unlink": ("EACCES", "take a file", "give user"),
    "flock": ("ENOSYS", "be locked (flock)", "mount Lustre with -o flock"),
    "mmap": ("ENODEV", "map a file into memory (mmap)", "a bucket belongs into ROLLCALL_STORAGE"),
    "append": ("EPERM", "append to a file (O_APPEND)", "a bucket belongs into ROLLCALL_STORAGE"),
    "overwrite": ("EOPNOTSUPP", "be locked (flock)", "a bucket belongs into ROLLCALL_STORAGE"),
    "pwrite": ("EINVAL", "change a file in place", "a bucket belongs into ROLLCALL_STORAGE"),
    "ftruncate": ("EINVAL", "change a file in place", "a bucket belongs into ROLLCALL_STORAGE"),
    "rename": ("ENOSYS", "replace a file", "a bucket belongs into ROLLCALL_STORAGE"),
    "fsync": ("EIO", "take a file", "see the log of its disk or server"),
    "fsyncdir": ("EINVAL", "replace a file", "a bucket belongs into ROLLCALL_STORAGE"),
    "renamedir": ("EOPNOTSUPP", "move and delete a directory", "ROLLCALL_STORAGE"),
    "rmdir": ("ENOTEMPTY", "move and delete a directory", "ROLLCALL_STORAGE"),
    "readdir": ("EIO", "move and delete a directory", "see the log of its disk or server"),
    "chmod": ("EPERM", "change a file's mode (chmod)", "rights of POSIX"),
    "utime": ("EPERM", "set a file's time (utime)", "use a local file system"),
    "symlink": ("EPERM", "hold a symbolic link", "use a local file system"),
    "bind": ("EOPNOTSUPP", "hold a socket (bind)", "use a local file system"),
}
"""A call → the error, and what the finding says of it; ROLLCALL_STORAGE: in place of a mount."""
OTHER_ERRORS = (
    "flock=ENOLCK",
    "flock=EINVAL",
    "append=EINVAL",
    "append=EOPNOTSUPP",
    "mkdir=EACCES",
)
OTHERS = (*OTHER_ERRORS, "create=ENOSPC", "fsync=EDQUOT", "rename=EXDEV", "mmap=EACCES")
ALL_AT_ONCE = "append=EPERM,flock=ENOLCK,rename=ENOSYS"
SLOW, HANGS = "chmod=s", "flock=h"
RULES = (*(f"{call}={row[0]}" for call, row in REFUSED.items()), *OTHERS, ALL_AT_ONCE, SLOW, HANGS)
PROGRAM = """
import json, os, sys
from pathlib import Path
from entrypoint.preflight import file_calls
file_calls.CALL_SECONDS = 3.0
calls = (*file_calls.OF_STORAGE, *file_calls.OF_TEMP[len(file_calls.OF_STORAGE) :])
place, found = Path(os.environ["FAILING_BELOW"]), {}
for rule, numbered in json.load(sys.stdin).items():
    os.environ["FAILING_CALLS"] = numbered
    finding = file_calls.judged(place, file_calls.tried(place, calls), "go elsewhere")
    found[rule] = finding and (finding.verdict, finding.evidence, finding.remedy)
print(json.dumps(found))
os._exit(0)  # a thread hangs
"""


def numbered(rule: str) -> str:
    pairs = [part.split("=") for part in rule.split(",")]
    return ",".join(f"{call}={getattr(errno, error, error)}" for call, error in pairs)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, str] | None]:
    """What is found under each rule, by the same process."""
    place = tmp_path_factory.mktemp("storage")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps({"": "", **{rule: numbered(rule) for rule in RULES}}),
        env=os.environ | failing_calls.variables(place),
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    return dict(json.loads(done.stdout))


def test_a_storage_that_answers_every_call_has_no_finding(
    found: dict[str, tuple[str, str, str] | None],
) -> None:
    assert found[""] is None


@pytest.mark.parametrize("call", REFUSED)
def test_each_call_that_a_storage_refuses_is_named_with_a_remedy(
    call: str, found: dict[str, tuple[str, str, str] | None]
) -> None:
    error, does, remedy = REFUSED[call]
    verdict, evidence, said = found[f"{call}={error}"] or ("", "", "")
    assert verdict == "fail"
    assert f"cannot {does}" in evidence
    assert os.strerror(getattr(errno, error)) in evidence
    assert remedy in said
    assert said.endswith("go elsewhere")


@pytest.mark.parametrize("rule", OTHERS)
def test_each_error_of_a_call_fails(
    rule: str, found: dict[str, tuple[str, str, str] | None]
) -> None:
    verdict, evidence, remedy = found[rule] or ("", "", "")
    assert verdict == "fail"
    assert os.strerror(getattr(errno, rule.partition("=")[2])) in evidence
    assert len(remedy) > len("go elsewhere")


def test_a_temporary_directory_is_to_be_local() -> None:
    remedies = {call.remedy for call in file_calls.OF_TEMP[1:]}
    assert remedies == {file_calls.LOCAL}


def test_all_refused_calls_are_in_one_finding(
    found: dict[str, tuple[str, str, str] | None],
) -> None:
    _, evidence, remedy = found[ALL_AT_ONCE] or ("", "", "")
    assert evidence.count("cannot") == 3
    assert "-o flock" in remedy
    assert "ROLLCALL_STORAGE" in remedy


def test_a_slow_call_warns_and_one_that_hangs_fails(
    found: dict[str, tuple[str, str, str] | None],
) -> None:
    verdict, evidence, _ = found[SLOW] or ("", "", "")
    assert verdict == "warn"
    assert "to change a file's mode (chmod)" in evidence
    verdict, evidence, remedy = found[HANGS] or ("", "", "")
    assert verdict == "fail"
    assert "gives no answer within 3 s if it is to be locked (flock)" in evidence
    assert "stale mount" in remedy
