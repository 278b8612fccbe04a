"""ROLLCALL_RAY_ADDRESS: which addresses it takes, and what it excludes."""

from __future__ import annotations

import pytest

from contract.options import ConfigError
from entrypoint.commands import plan
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, decide
from entrypoint.config.settings import PreflightMode
from entrypoint.preflight.run import OF_SUPERVISOR, run_checks

NAMED = {"ROLLCALL_NODE_NAME": "here", "ROLLCALL_RECIPE": "command"}
BESIDE = NAMED | {"ROLLCALL_RAY_ADDRESS": "http://ray-head:8265", "EXPECTED_WORKERS": "2"}
KUBERAY = {"KUBERAY_GEN_RAY_START_CMD": "ray start --head", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def faults(**environ: str) -> str:
    with pytest.raises(ConfigError) as error:
        decide(read_settings(BESIDE | environ))
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://ray-head:8265", "http://ray-head:8265"),
        ("http://ray-head", "http://ray-head:8265"),
        ("ray-head:9000", "http://ray-head:9000"),
        ("10.0.0.2", "http://10.0.0.2:8265"),
        ("http://[fd00::2]:8265/", "http://[fd00::2]:8265"),
        ("https://ray.example.com/cluster/", "https://ray.example.com:443/cluster"),
    ],
)
def test_a_dashboard_is_named_by_url_or_by_host(given: str, address: str) -> None:
    assert read_settings(BESIDE | {"ROLLCALL_RAY_ADDRESS": given}).ray_address == address


@pytest.mark.parametrize("given", ["ray://head:10001", "http://", "auto:x", "http://a/?b=c", "a b"])
def test_what_is_no_dashboard_is_refused_in_words(given: str) -> None:
    assert "give the address of Ray's dashboard" in faults(ROLLCALL_RAY_ADDRESS=given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("auto", "is Ray's word for a cluster on this machine"),
        ("10.0.0.2:6379", "has the port of `ray start --address`"),
        ("http://ray-head:6379", "has the port of `ray start --address`"),
    ],
)
def test_the_addresses_of_rays_other_commands_are_no_dashboard(given: str, said: str) -> None:
    sentence = faults(ROLLCALL_RAY_ADDRESS=given)
    assert said in sentence
    assert "give the address of Ray's dashboard" in sentence


def test_the_node_is_a_head_also_where_kuberay_starts_ray() -> None:
    for platform in ({}, KUBERAY):
        role = decide(read_settings(BESIDE | platform))
        assert role == Head(2, 2, "ROLLCALL_RAY_ADDRESS=http://ray-head:8265")


def test_the_number_of_nodes_must_be_given() -> None:
    assert "EXPECTED_WORKERS is not set" in faults(EXPECTED_WORKERS="")
    lws = {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "3", "LWS_LEADER_ADDRESS": "a"}
    assert "Ray does not say how many nodes" in faults(**lws, EXPECTED_WORKERS="")


def test_a_second_supervisor_on_a_platforms_worker_is_refused() -> None:
    assert "RAY_WORKER=1" in faults(RAY_WORKER="1")
    assert "LWS_WORKER_INDEX=1" in faults(
        LWS_WORKER_INDEX="1", LWS_GROUP_SIZE="3", LWS_LEADER_ADDRESS="a"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLLCALL_STANDBY_RANKS", "1"),
        ("ROLLCALL_NUM_GPUS", "8"),
        ("ROLLCALL_RAY_PORT", "7000"),
        ("ROLLCALL_RAY_TEMP_DIR", "/tmp/other"),
        ("ROLLCALL_RESOURCES", '{"v100": 1}'),
        ("DEBUG_RAY", "1"),
        ("ROLLCALL_WAIT_FOR_JOBS", "1"),
    ],
)
def test_settings_for_rays_start_are_refused(name: str, value: str) -> None:
    assert f"{name}='" in (said := faults(**{name: value}))
    assert "ROLLCALL_RAY_ADDRESS names one that exists" in said


def test_a_server_on_every_node_is_refused() -> None:
    server = {"ROLLCALL_RETRIEVER_URL": "http://a:1", "ROLLCALL_RETRIEVER_COMMAND": "serve"}
    assert "ROLLCALL_RETRIEVER_ON='every'" in faults(**server)
    read_settings(BESIDE | server | {"ROLLCALL_RETRIEVER_ON": "head"})


def test_the_plan_names_the_cluster_and_says_that_it_asks_no_node() -> None:
    row = plan.plan(read_settings(BESIDE, ["sh", "-c", "true"]))
    assert row["faults"] == []
    assert (row["role"], row["ray_address"]) == ("head", "http://ray-head:8265")
    assert row["sources"]["role"] == "ROLLCALL_RAY_ADDRESS"
    assert any("no layout" in warning for warning in row["warnings"])


def test_the_supervisor_leaves_the_checks_of_a_node_to_rays_nodes() -> None:
    settings = read_settings(BESIDE)
    assert settings.preflight is PreflightMode.STRICT
    report = run_checks(decide(settings), settings)
    left = {result.name for result in report.results if "each node of Ray" in result.evidence}
    assert {result.name for result in report.results} == left | OF_SUPERVISOR
    assert not left & OF_SUPERVISOR
