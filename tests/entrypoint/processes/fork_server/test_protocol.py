"""Which requests for a process the fork server may answer with a fork."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from entrypoint.processes.fork_server.protocol import NotForkableError, Request, forkable

ASKED = Request(("/r/_private/workers/default_worker.py", "--x"), {"A": "1"}, "/", 0o22, ())


def wrapped(**context: Any) -> Request:
    said = f"--serialized-runtime-env-context={json.dumps(context)}"
    argv = ("/r/setup_worker.py", "/r/default_worker.py", "--x", "--language=PYTHON", said)
    return replace(ASKED, argv=argv)


@pytest.mark.parametrize(
    ("own", "fits"),
    [
        ({"A": "1"}, True),
        ({"A": "1", "RAY_JOB_ID": "7", "ROLLCALL_ATTEMPT": "2", "PWD": "/"}, True),
        ({"A": "2"}, False),
        ({}, False),
        ({"A": "1", "LD_PRELOAD": "x"}, False),
    ],
)
def test_what_differs_must_be_read_by_nothing_before_the_fork(
    own: dict[str, str], fits: bool
) -> None:
    if fits:
        assert forkable(ASKED, own, "python") == ASKED
    else:
        with pytest.raises(NotForkableError, match="may be read at import"):
            forkable(ASKED, own, "python")


def test_variables_of_a_runtime_environment_are_set_without_the_program_that_sets_them() -> None:
    asked = wrapped(env_vars={"RAY_worker_niceness": "0"}, py_executable="python", java_jars=[])
    request = forkable(asked, {"A": "1"}, "python")
    assert request.argv == ("/r/default_worker.py", "--x")
    assert request.environ == {"A": "1", "RAY_worker_niceness": "0"}


@pytest.mark.parametrize(
    "context",
    [
        {"py_executable": "another"},
        {"command_prefix": ["nice"]},
        {"env_vars": {"RAY_X": "${HOME}"}},
        {"env_vars": {"HF_HOME": "/x"}},
    ],
)
def test_any_other_runtime_environment_is_set_up_by_ray(context: dict[str, Any]) -> None:
    with pytest.raises(NotForkableError):
        forkable(wrapped(**context), {"A": "1"}, "python")
