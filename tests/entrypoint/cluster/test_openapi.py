"""The description of the control port says what its routes and typed requests are."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoint.cluster import request_format
from entrypoint.cluster.access import NEEDED, Access
from entrypoint.cluster.openapi import BEARER, OPERATIONS, _add
from tests.support.control import Head


def test_every_path_is_described_with_the_key_that_it_needs(head: Head) -> None:
    described = head.get("/v1/openapi.json").json()
    found = {
        (method.upper(), path): one["security"]
        for path, methods in described["paths"].items()
        for method, one in methods.items()
    }
    assert set(found) == set(OPERATIONS) == set(NEEDED) - {("POST", "/")}
    for place, security in found.items():
        assert security == ([] if NEEDED[place] is Access.NONE else [{BEARER: []}])


def test_bodies_and_queries_are_those_that_the_port_reads(head: Head) -> None:
    described = head.get("/v1/openapi.json").json()
    schemas, paths = described["components"]["schemas"], described["paths"]
    body = paths["/v1/check-in"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/CheckIn"}
    assert set(schemas["CheckIn"]["properties"]) == set(request_format.CheckIn.model_fields)
    asked = {one["name"]: one["required"] for one in paths["/v1/outcome"]["get"]["parameters"]}
    assert asked == {"node": True, "oom_kills": False, "gpus": False}


def test_two_types_of_one_name_are_refused() -> None:
    schemas: dict[str, Any] = {}
    _add(schemas, {"Health": {"type": "object"}})
    _add(schemas, {"Health": {"type": "object"}})
    with pytest.raises(ValueError, match="two types are called Health"):
        _add(schemas, {"Health": {"type": "array"}})
