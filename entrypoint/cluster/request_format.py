"""Validates what nodes send to the control port; an error names every wrong field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    StringConstraints,
    ValidationError,
)

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.parsers import NODE_NAME, RUN_NAME, host
from entrypoint.config.pipeline import Stage
from entrypoint.preflight.changes import HealthKind
from entrypoint.processes.rank_processes import RankProcess

MOST_BYTES = 256 * 1024
"""Limit for the body of a check-in."""
MOST_OF_RANKS = 16 * 2**20
"""Limit for the body that says where a node's ranks stand."""
MOST_SHOWN = 500
"""Characters of an error message: the name of a wrong field may have any length."""

SAID = {
    "too_short": "it is empty",
    "too_long": "it has too many entries",
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "string_type": "it is no text",
    "list_type": "it is no list",
}
"""pydantic's kinds of errors, in words for people."""

NodeName = Annotated[str, StringConstraints(pattern=f"^{NODE_NAME}$")]
RunName = Annotated[str, StringConstraints(pattern=f"^(?:{RUN_NAME})?$")]
Address = Annotated[str, StringConstraints(max_length=255), AfterValidator(host)]
Line = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""Text without control characters, because consoles show it."""
Text = Annotated[str, StringConstraints(max_length=2**17, pattern=r"^[^\x00]*$")]
HealthName = Annotated[HealthKind, Field(strict=False)]
Lines = Annotated[list[Line], Field(max_length=256)]
Amount = Annotated[float, Field(ge=0, le=2**63)]
Amounts = Annotated[dict[Line, Amount], Field(max_length=256)]
Texts = Annotated[dict[Line, Line], Field(max_length=1024)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Known = Count | None
GpuCondition = tuple[Known, Known, Known, Lines]
"""MHz, watts, degrees Celsius, and why the clocks are held down."""
GpuUses = Annotated[list[tuple[Share | None, Count, Count, GpuCondition]], Field(max_length=256)]
"""For each GPU its share of time in use, MiB of memory (used and total), and its condition."""


class CheckIn(BaseModel):
    """A `NodeInfo` as JSON. Unknown fields of a newer version are ignored: the comparison of
    versions says more."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    node: NodeName
    address: Address
    versions: Texts = {}
    inventory: Amounts = {}
    gpu_ids: Lines = []
    resources: Amounts = {}
    joined: bool = False
    warnings: Lines = []
    findings: Texts = {}
    rejoins: Line = ""
    examined: Line = ""
    unfit: Lines = []
    tls: Line = ""
    environment: Texts = {}
    storage: Line = ""
    clock: Annotated[float, Field(ge=0, le=1e11)] | None = None
    rank: Count | None = None
    oom_kills: Count = 0


class Submission(BaseModel):
    """A job for the queue."""

    model_config = ConfigDict(strict=True, extra="forbid")

    job: Annotated[list[Text], Field(min_length=1, max_length=10_000)]
    runtime_env: dict[str, Any] = {}
    key: Line = ""
    name: RunName = ""


class StageSubmission(BaseModel):
    """A stage of a pipeline."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Line
    job: Annotated[list[Text], Field(min_length=1, max_length=10_000)]
    runtime_env: dict[str, Any] = {}
    key: Line = ""


class PipelineSubmission(BaseModel):
    """Jobs for the queue, each after the one before."""

    model_config = ConfigDict(strict=True, extra="forbid")

    stages: Annotated[list[StageSubmission], Field(min_length=1, max_length=100)]


class TokenChange(BaseModel):
    """Another token for the run; null: the head makes one."""

    model_config = ConfigDict(strict=True)

    token: str | None = None


class Question(BaseModel):
    """The query of /v1/outcome."""

    node: NodeName
    oom_kills: Count | None = None
    gpus: Json[GpuUses] = []


class Departure(BaseModel):
    """The query of /v1/leave."""

    node: NodeName
    why: Line = ""


class LeftOver(BaseModel):
    """The query of /v1/left-over."""

    node: NodeName
    job: Line
    left: Line = ""


class NodeHealth(BaseModel):
    """What is worse on a node than before: kind, part and evidence of each change."""

    model_config = ConfigDict(strict=True)

    node: NodeName
    changes: Annotated[list[tuple[HealthName, Line, Line]], Field(max_length=256)]


class NodeRanks(BaseModel):
    """Where the ranks on a node stand: the answer to the head's question of this number."""

    node: NodeName
    number: Count
    ranks: Annotated[list[RankProcess], Field(max_length=4096)]


class LogPart(BaseModel):
    """The query of /v1/log."""

    node: NodeName
    life: Line
    file: Line
    offset: Annotated[int, Field(ge=0, le=2**53)]


def node_info(body: bytes) -> NodeInfo:
    """Parse a check-in. Raises ValueError, which names the wrong fields."""
    try:
        check_in = CheckIn.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_describe(error)) from None
    return NodeInfo(**dict(check_in))


def health(body: bytes) -> NodeHealth:
    """Parse what is worse on a node. Raises ValueError, which names the wrong fields."""
    try:
        return NodeHealth.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_describe(error, "the changes")) from None


def ranks(body: bytes) -> NodeRanks:
    """Parse where a node's ranks stand. Raises ValueError, which names the wrong fields."""
    try:
        return NodeRanks.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_describe(error, "the ranks")) from None


def submission(body: bytes) -> Submission:
    """Parse a submission. Raises ValueError, which names the wrong fields."""
    try:
        return Submission.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_describe(error, "the submission")) from None


def token_change(body: bytes) -> TokenChange:
    """Parse a change of the token. Raises ValueError, which shows nothing of the token."""
    try:
        return TokenChange.model_validate_json(body)
    except ValidationError:
        raise ValueError("the body is no object with a token") from None


def pipeline(body: bytes) -> list[Stage]:
    """Parse a pipeline. Raises ValueError, which names the wrong fields."""
    try:
        asked = PipelineSubmission.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_describe(error, "the pipeline")) from None
    return [Stage(one.name, tuple(one.job), one.runtime_env, one.key) for one in asked.stages]


Query = TypeVar("Query", Question, Departure, LeftOver, LogPart)


def query(kind: type[Query], parameters: Mapping[str, str]) -> Query:
    """Parse a query. Raises ValueError, which names the wrong parameters."""
    try:
        return kind.model_validate(dict(parameters))
    except ValidationError as error:
        raise ValueError(_describe(error)) from None


def _describe(error: ValidationError, whole: str = "the check-in") -> str:
    rows = error.errors(include_url=False, include_context=False, include_input=False)
    places = (".".join(map(str, row["loc"])) or whole for row in rows)
    said = (SAID.get(row["type"], row["msg"]) for row in rows)
    text = "; ".join(f"{place}: {what}" for place, what in zip(places, said, strict=True))
    return text[:MOST_SHOWN]
