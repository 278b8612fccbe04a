"""compose/monitoring: a real Prometheus takes its files, and scrapes a real head with them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from grafana_foundation_sdk.cog import plugins, runtime
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from entrypoint.cluster.prometheus import METRICS
from entrypoint.cluster.server import HeadPhase
from entrypoint.net.port_block import PortBlock
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head
from tests.support.repository import DATA, ROOT
from tests.support.waiting import eventually
from tests.support.watched_run import watched

MONITORING = ROOT / "compose" / "monitoring"
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
RULES: list[dict[str, Any]] = ALERTS["groups"][0]["rules"]
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "rollcall.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [(one["title"], t["expr"]) for one in PANELS for t in one.get("targets", [])]
NAME = re.compile(r"\brollcall_\w+")

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no prometheus and promtool here (make hosts installs Debian's package)",
)


def promtool(*words: str | Path, given: str | None = None) -> str:
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_metric_that_the_files_name_is_one_of_the_head() -> None:
    exported = {f"rollcall_{name}" for name in METRICS}
    exprs = [rule["expr"] for rule in RULES] + [expr for _, expr in QUERIES]
    assert {name for expr in exprs for name in NAME.findall(expr)} <= exported
    variables = json.dumps(DASHBOARD["templating"])
    assert set(NAME.findall(variables)) <= exported


def test_the_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in PANELS)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)


def unread(given: Any, read: Any, path: str = "") -> list[str]:
    """The places of `given` that a reader has not kept as they are."""
    if isinstance(given, dict) and isinstance(read, dict):
        pairs = [(name, value, read.get(name)) for name, value in given.items()]
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        pairs = [(str(at), given[at], read[at]) for at in range(len(given))]
    else:
        return [] if given == read else [path]
    return [found for name, one, other in pairs for found in unread(one, other, f"{path}/{name}")]


def test_grafana_s_own_schema_knows_everything_that_the_dashboard_says() -> None:
    plugins.register_default_plugins()
    panels = [panel["type"] for panel in PANELS if panel["type"] != "row"]
    assert [kind for kind in panels if runtime.panelcfg_config(kind) is None] == []
    read = json.loads(json.dumps(Dashboard.from_json(DASHBOARD), cls=JSONEncoder))
    assert unread(DASHBOARD, read) == []
    misspelt = json.loads(json.dumps(DASHBOARD).replace('"graphMode"', '"graphMood"'))
    read = json.loads(json.dumps(Dashboard.from_json(misspelt), cls=JSONEncoder))
    assert "graphMood" in unread(misspelt, read)[0], "the schema would miss a fault"


def test_the_compose_file_mounts_files_that_are_there() -> None:
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    mounts = [volume for service in services.values() for volume in service["volumes"]]
    sources = {mount.split(":")[0] for mount in mounts if mount.startswith("./")}
    made = "./read.key"
    assert made in sources
    assert [source for source in sources - {made} if not (MONITORING / source).exists()] == []
    ignored = subprocess.run(["git", "check-ignore", MONITORING / "read.key"], cwd=ROOT)
    assert ignored.returncode == 0


def test_the_page_says_what_to_do_about_every_alert() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert [rule["alert"] for rule in RULES if f"| `{rule['alert']}` |" not in page] == []


def test_the_alert_of_the_first_step_knows_the_phase_of_a_cluster_without_a_job() -> None:
    (rule,) = [rule for rule in RULES if rule["alert"] == "RollcallNoFirstStep"]
    (phase,) = re.findall(r'phase=~"([^"]*)"', rule["expr"])
    assert re.fullmatch(phase, HeadPhase.AWAITING_JOB)


@needs_prometheus
def test_each_alert_fires_when_it_should_and_else_does_not() -> None:
    file = DATA / "alerts_test.yaml"
    promtool("test", "rules", file)
    cases = yaml.safe_load(file.read_text())["tests"]
    rows = [row for case in cases for row in case["alert_rule_test"]]
    fired = {row["alertname"] for row in rows if row.get("exp_alerts")}
    quiet = {row["alertname"] for row in rows if not row.get("exp_alerts")}
    assert fired == quiet == {rule["alert"] for rule in RULES}


class Prometheus:
    """A real Prometheus on loopback with the files of compose/monitoring."""

    def __init__(self, directory: Path, head_port: int) -> None:
        self._directory = shutil.copytree(MONITORING, directory / "monitoring")
        (self._directory / "read.key").write_text(run_token.read_only(TOKEN) + "\n")
        self.config = self._directory / "prometheus.yaml"
        text = self.config.read_text().replace("head:8267", f"127.0.0.1:{head_port}")
        assert str(head_port) in text
        self.config.write_text(text.replace("15s", "1s"))
        self._ports = PortBlock()
        self.url = f"http://127.0.0.1:{self._ports.first}"

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self.config}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stderr=(self._directory / "log").open("wb"),
        )

    def ask(self, path: str, **query: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=query, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def up(self) -> bool:
        """Whether Prometheus is ready (until then it answers 503) and has scraped the head."""
        try:
            ready = httpx.get(f"{self.url}/-/ready", trust_env=False)
        except httpx.TransportError:
            return False
        if not ready.is_success:
            return False
        return [one["value"][1] for one in self.ask("query", query="up")["result"]] == ["1"]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with watched(tmp_path_factory.mktemp("run")) as head:
        yield head


@pytest.fixture(scope="module")
def prometheus(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), head.port)
    process = server.start()
    try:
        eventually(server.up, seconds=90)
        yield server
    finally:
        process.terminate()
        process.wait(20)


@needs_prometheus
def test_prometheus_scrapes_the_head_with_the_read_only_key(prometheus: Prometheus) -> None:
    promtool("check", "config", prometheus.config)
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert target["health"] == "up", target
    known = {one for one in prometheus.ask("label/__name__/values") if one.startswith("rollcall_")}
    assert known == {f"rollcall_{name}" for name in METRICS}


@needs_prometheus
def test_the_head_s_metrics_have_no_fault_that_promtool_knows(head: Head) -> None:
    assert promtool("check", "metrics", given=head.get("/metrics").text) == ""


@needs_prometheus
@pytest.mark.parametrize(("title", "expr"), QUERIES)
def test_every_panel_has_values(prometheus: Prometheus, title: str, expr: str) -> None:
    (target,) = prometheus.ask("targets")["activeTargets"]
    query = expr.replace("$instance", target["labels"]["instance"])
    eventually(lambda: bool(prometheus.ask("query", query=query)["result"]))


@needs_prometheus
def test_prometheus_evaluates_the_alerts(prometheus: Prometheus) -> None:
    def states() -> dict[str, str]:
        (group,) = prometheus.ask("rules")["groups"]
        assert not [rule for rule in group["rules"] if rule["health"] == "err"]
        return {rule["name"]: rule["state"] for rule in group["rules"]}

    eventually(lambda: states()["RollcallNodeSilent"] == "pending")  # w2, for less than 2 min
    eventually(lambda: states()["RollcallGpuFailed"] == "firing")
    assert states()["RollcallRunFailed"] == "inactive"
    assert states()["RollcallHeadGone"] == "inactive"
