"""The OpenAPI description of the control port, of which clients in any language are made.

Paths, methods and keys come from the port's routes, parameters and bodies from `request_format`.
What is written here is which of those types an operation takes and answers with.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.routing import Route

from contract.exit_codes import ExitCode
from contract.launch import distribution
from entrypoint.cluster import answers as of
from entrypoint.cluster import request_format as asked
from entrypoint.cluster.access import DESCRIPTION, KEYS, RENEWAL, TOKEN, Access, needed
from entrypoint.net.paths import CERTIFICATE

VERSION = "3.1.0"
REF = "#/components/schemas/{model}"
JSON, HTML, TEXT, EVENTS = "application/json", "text/html", "text/plain", "text/event-stream"
BYTES = "application/octet-stream"
BEARER = "key"
POSITION = {"after": "what the answer before ended with", "version": "of the answer before"}
JOB = {"job": "id of a submitted job; without it, the run that the head shows"}
STATE_QUERY = {
    "until": "outcome: answer when there is an outcome, or after 5 s",
    "brief": "1: without the nodes about which there is nothing to say",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operation takes, beyond its path, and answers with."""

    answers: Mapping[int, Any]
    """Status → type of the JSON, or a media type."""
    body: type[BaseModel] | str | None = None
    """Type of the JSON, or a media type."""
    query: type[BaseModel] | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    """Optional parameters that are read as they are → what they say."""
    of_job: bool = False
    """Whether `?job=` names a job, or the path does: it may be unknown, or there is no queue."""


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/"): Operation({200: HTML}),
    ("GET", "/healthz"): Operation({200: of.Health}),
    ("GET", CERTIFICATE): Operation({200: of.Certificate}),
    ("GET", "/metrics"): Operation({200: TEXT}),
    ("GET", DESCRIPTION): Operation({200: dict[str, Any]}),
    ("GET", "/v1/state"): Operation({200: of.State}, texts=STATE_QUERY | JOB, of_job=True),
    ("GET", KEYS): Operation({200: dict[str, str]}),
    ("GET", "/v1/events"): Operation(
        {200: EVENTS},
        texts=JOB
        | {"without": "kinds to leave out, with commas", "last": "so many events at first"},
        of_job=True,
    ),
    ("GET", "/v1/gpus"): Operation({200: of.Series}, texts=POSITION),
    ("GET", "/v1/curves"): Operation({200: of.Series}, texts=POSITION | JOB, of_job=True),
    ("GET", "/v1/runs"): Operation({200: of.Runs}),
    ("GET", "/v1/comparison"): Operation(
        {200: of.Comparison, 400: of.Error}, texts=JOB, of_job=True
    ),
    ("GET", "/v1/samples"): Operation({200: of.Samples}, texts=JOB, of_job=True),
    ("GET", "/v1/logs"): Operation({200: of.Logs}, texts=JOB, of_job=True),
    ("GET", "/v1/logs/{name}"): Operation(
        {200: of.LogPiece, 400: of.Error, 404: of.Error},
        texts=JOB | {"offset": "in bytes; a negative one counts from the end"},
        of_job=True,
    ),
    ("POST", "/v1/stop"): Operation({202: of.Stopping}),
    ("GET", "/v1/jobs"): Operation({200: of.JobRows, 409: of.Error}),
    ("GET", "/v1/jobs/{job}"): Operation({200: of.ShownJob}, of_job=True),
    ("POST", "/v1/jobs"): Operation({201: of.JobRow, 409: of.Error}, body=asked.Submission),
    ("POST", "/v1/pipelines"): Operation(
        {201: of.JobRows, 409: of.Error}, body=asked.PipelineSubmission
    ),
    ("POST", "/v1/jobs/{job}/stop"): Operation({202: of.JobRow}, of_job=True),
    ("PUT", "/v1/packages/{name}"): Operation(
        {201: of.Upload, 400: of.Error, 409: of.Error}, body=BYTES
    ),
    ("POST", TOKEN): Operation({200: of.TokenChanged}, body=asked.TokenChange),
    ("POST", RENEWAL): Operation({200: of.NewToken}),
    ("POST", "/v1/check-in"): Operation(
        {200: of.Accepted, 400: of.Accepted, 409: of.Accepted}, body=asked.CheckIn
    ),
    ("GET", "/v1/outcome"): Operation({200: of.Outcome, 404: of.UnknownNode}, query=asked.Question),
    ("POST", "/v1/leave"): Operation({202: of.Leaving, 404: of.Error}, query=asked.Departure),
    ("POST", "/v1/left-over"): Operation({200: of.Taken}, query=asked.LeftOver),
    ("POST", "/v1/health"): Operation({200: of.Taken, 400: of.Error}, body=asked.NodeHealth),
    ("POST", "/v1/ranks"): Operation({200: of.Taken, 400: of.Error}, body=asked.NodeRanks),
    ("POST", "/v1/log"): Operation({200: of.Taken}, body=TEXT, query=asked.LogPart),
}


def description(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes. Raises KeyError for one that is not here."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = OPERATIONS[method, route.path]
            made = _operation(method, route, operation, schemas)
            paths.setdefault(route.path, {})[method.lower()] = made
    return {
        "openapi": VERSION,
        "info": {
            "title": "Rollcall's control port",
            "version": version(distribution.NAME),
            "description": "Times are in ISO 8601. An answer may have fields beyond these. "
            f"Exit codes: {', '.join(f'{code.value} {code.name}' for code in ExitCode)}.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    method: str, route: Route, operation: Operation, schemas: dict[str, Any]
) -> dict[str, Any]:
    access = needed(method, route.path)
    words = [word for word in re.split(r"\W+", f"{method.lower()} {route.path}") if word != "v1"]
    made: dict[str, Any] = {
        "operationId": "_".join(filter(None, words)),
        "summary": f"Needs {access.key}.",
        "description": inspect.getdoc(route.endpoint) or "",
        "parameters": [
            *_of_path(route.path),
            *_of_query(operation, schemas),
        ],
        "responses": {
            str(status): _answer(kind, schemas)
            for status, kind in sorted(_answers(operation, access).items())
        },
        "security": [] if access is Access.NONE else [{BEARER: []}],
    }
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": _content(operation.body, schemas)}
    return made


def _answers(operation: Operation, access: Access) -> dict[int, Any]:
    """Return all statuses of an operation: its own, and those that any may have."""
    wrong: dict[int, Any] = {}
    if operation.body is not None or operation.query is not None:
        wrong[400] = of.Error
    if operation.of_job:
        wrong |= {404: of.Error, 409: of.Error}
    if access is not Access.NONE:
        wrong |= {401: of.Error, 403: of.Error, 503: of.Error}
    return wrong | dict(operation.answers)


def _of_path(path: str) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _of_query(operation: Operation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found = [
        {"name": name, "in": "query", "description": said, "schema": text}
        for name, said in operation.texts.items()
    ]
    if operation.query is None:
        return found
    made = operation.query.model_json_schema(ref_template=REF)
    _add(schemas, made.pop("$defs", {}))
    required = made.get("required", [])
    return [
        *found,
        *(
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in made["properties"].items()
        ),
    ]


def _answer(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "JSON")
    return {"description": name, "content": _content(kind, schemas)}


def _content(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the `content` of a body: a type of JSON by its name, or a media type."""
    if isinstance(kind, str):
        return {kind: {"schema": {"type": "string"}}}
    made = TypeAdapter(kind).json_schema(ref_template=REF)
    _add(schemas, made.pop("$defs", {}))
    if kind.__module__ == "builtins":  # a mapping of any names
        return {JSON: {"schema": made}}
    _add(schemas, {kind.__name__: made})
    return {JSON: {"schema": {"$ref": REF.format(model=kind.__name__)}}}


def _add(schemas: dict[str, Any], made: Mapping[str, Any]) -> None:
    """Add types by their names. Raises ValueError for two types of one name."""
    for name, schema in made.items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two types are called {name}: the description can have one of them")
