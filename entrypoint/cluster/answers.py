"""The answers of the control port as JSON, for its OpenAPI description. Other fields may follow."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class Error(TypedDict):
    error: str


class Health(TypedDict):
    status: str


class Certificate(TypedDict):
    proofs: list[str]
    replaced: dict[str, str]


class Stopping(TypedDict):
    stopping: bool
    cannot_save: str


class State(TypedDict):
    incarnation: NotRequired[str]
    is_live: bool
    phase: NotRequired[str]
    sentence: NotRequired[str]
    job: NotRequired[str | None]
    takes_jobs: NotRequired[bool]
    attempt: int
    failures: int
    progress: dict[str, Any] | None
    outcome: dict[str, Any] | None
    flags: dict[str, str]
    """Of the job that is shown, as they were given; "" has the words before them."""
    has_samples: NotRequired[bool]
    nodes: NotRequired[list[dict[str, Any]]]


class JobRow(TypedDict):
    """A submitted job."""

    id: str
    words: list[str]
    state: str
    submitted: str
    ended: str | None
    exit_code: int | None
    sentence: str
    key: str
    name: str
    stage: str
    after: str
    recipe: str
    run_dir: str
    runtime_env: list[str]
    """Names of its fields."""
    notes: list[str]
    """What nobody has told of the job's program, such as where its log tells a step."""


class ShownJob(JobRow):
    attempt: int
    failures: int
    is_starting: bool
    tells_steps: bool
    attempt_seconds: float | None
    progress: dict[str, Any] | None
    cause: str
    """As `place`, `to_do` and `log`: "" before the job's end, and where it is not known."""
    place: str
    to_do: str
    log: str


class JobRows(TypedDict):
    jobs: list[JobRow]


class Upload(TypedDict):
    working_dir: str


class Logs(TypedDict):
    logs: list[str]


class LogPiece(TypedDict):
    text: str
    offset: int


class Series(TypedDict):
    """Points since the step or the second of the query."""

    version: str


class Samples(TypedDict):
    samples: list[dict[str, Any]]


class Runs(TypedDict):
    runs: list[dict[str, Any]]
    count: int
    more: bool


class Comparison(TypedDict):
    """Each value and each flag has a cell for each run, in the order of `runs`."""

    runs: list[dict[str, Any]]
    values: list[dict[str, Any]]
    flags: list[dict[str, Any]]


class Accepted(TypedDict):
    accepted: bool
    reason: NotRequired[str]
    incarnation: NotRequired[str]
    address: NotRequired[str]


class Outcome(TypedDict):
    outcome: str
    incarnation: str


class UnknownNode(Error):  # noqa: N818 - it is an answer
    incarnation: NotRequired[str]


class Taken(TypedDict):
    taken: bool


class TokenChanged(TypedDict):
    told: list[str]
    not_told: list[str]
    is_given: bool


class NewToken(TypedDict):
    token: str


class Leaving(TypedDict):
    leaving: bool
