"""What a token holder may send at check-in: all of it is validated, and nothing breaks the head."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.request_format import MOST_BYTES, CheckIn
from entrypoint.machine.inventory import collective_variables
from tests.support.control import Head, node_info

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("node", {"node": "a" * 200_000}),
    ("node", {"node": "a\nb"}),
    ("node", {"node": "a\n"}),
    ("node", {"node": "a\x1b[31m"}),
    ("node", {"node": ""}),
    ("node", {"node": 7}),
    ("node", {"node": None}),
    ("address", {"address": "two words"}),
    ("address", {"address": ["127.0.0.3"]}),
    ("versions.ray", {"versions": {"ray": 2.55}}),
    ("versions", {"versions": "2.55.0"}),
    ("inventory.cpus", {"inventory": {"cpus": math.nan}}),
    ("inventory.cpus", {"inventory": {"cpus": math.inf}}),
    ("inventory.gpus", {"inventory": {"gpus": -1}}),
    ("inventory.gpus", {"inventory": {"gpus": "8"}}),
    ("resources.v100", {"resources": {"v100": True}}),
    ("joined", {"joined": 1}),
    ("warnings", {"warnings": 7}),
    ("warnings.0", {"warnings": ["a\x07"]}),
    ("findings.gpu", {"findings": {"gpu": "a\nb"}}),
    ("unfit.0", {"unfit": ["a\rb"]}),
    ("environment.NCCL_DEBUG", {"environment": {"NCCL_DEBUG": {}}}),
    ("clock", {"clock": math.nan}),
    ("oom_kills", {"oom_kills": 1.5}),
    ("oom_kills", {"oom_kills": 10**400}),
]


@pytest.fixture
def row() -> dict[str, Any]:
    return asdict(node_info("a"))


def test_a_wrong_field_is_named_and_the_head_goes_on(head: Head, row: dict[str, Any]) -> None:
    with head.client()._http as http:
        for field, changes in WRONG:
            body = json.dumps(row | changes)
            answer = http.post("/v1/check-in", content=body)
            assert answer.status_code == 400, changes
            assert answer.json()["reason"].startswith(f"{field}: "), changes
            assert len(answer.json()["reason"]) < 600
        assert http.post("/v1/check-in", json=row).status_code == 200
        assert [node["node"] for node in http.get("/v1/state").json()["nodes"]] == ["a"]
        assert http.get("/metrics").is_success


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"7",
        b"[]",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"node":' * 30_000,
        b'{"warnings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b" " * (MOST_BYTES + 1),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_check_in_is_refused_with_a_reason(head: Head, body: bytes) -> None:
    answer = head.client().ask("POST", "/v1/check-in", content=body)
    assert answer.status_code == 400
    assert answer.json()["reason"]


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/v1/outcome", "node"),
        ("GET", "/v1/outcome?node=" + "a" * 1000, "node"),
        ("GET", "/v1/outcome?node=a%0Ab", "node"),
        ("GET", "/v1/outcome?node=a&oom_kills=nan", "oom_kills"),
        ("GET", "/v1/outcome?node=a&oom_kills=" + "9" * 30, "oom_kills"),
        ("POST", "/v1/leave?why=SIGTERM", "node"),
        ("POST", "/v1/leave?node=a&why=%1b%5b31m", "why"),
        ("POST", "/v1/leave?node=a&why=" + "a" * 5000, "why"),
    ],
)
def test_a_wrong_parameter_is_named(head: Head, method: str, path: str, field: str) -> None:
    head.client().check_in(node_info("a"))
    answer = head.client().ask(method, path)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{field}: ")
    assert head.heard.leaves == []


def test_every_field_of_a_card_is_validated() -> None:
    assert set(CheckIn.model_fields) == {one.name for one in fields(NodeInfo)}


def test_a_variable_of_nccl_keeps_no_node_out_whatever_its_value() -> None:
    odd = collective_variables(
        {"NCCL_TOPO_DUMP_FILE": "a\tb\nc", "NCCL_IB_HCA": "x" * 10_000, "HOME": "/"}
    )
    assert odd == {"NCCL_TOPO_DUMP_FILE": "a b c", "NCCL_IB_HCA": "x" * 1000}
    CheckIn(node="a", address="127.0.0.3", environment=odd)
