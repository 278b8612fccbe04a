"""A real run of one node as it is watched: metrics, lines of JSON, webhook, and bundle."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from entrypoint.processes.process import kill
from tests.support.hook_server import PATH, hook_server
from tests.support.node_cluster import HEAD, JOB, Cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def metrics(cluster: Cluster) -> dict[str, float]:
    key = cluster.ask("open", "--key").stdout.strip()
    assert key.startswith("rollcall-read-")
    env = cluster.environment(HEAD)
    url = f"http://{env['ROLLCALL_BIND']}:{env['ROLLCALL_CONTROL_PORT']}/metrics"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
    families = text_string_to_metric_families(answer.raise_for_status().text)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def driver(cluster: Cluster) -> list[psutil.Process]:
    return cluster.named(HEAD, str(JOB))


@pytest.mark.faults
def test_a_run_is_watched_from_start_over_a_crash_to_its_end(tmp_path: Path) -> None:
    with hook_server([500]) as hook:
        watched = {"ROLLCALL_LOG": "json", "ROLLCALL_WEBHOOK": hook.url}
        cluster = Cluster(tmp_path / "one", workers=0, **watched)
        try:
            cluster.start(HEAD)
            cluster.goes_on(within=90)
            before = metrics(cluster)
            kill(driver(cluster))
            cluster.resumes(1, within=90)
            eventually(lambda: hook.events == ["start", "failure", "recovery"])
            eventually(lambda: metrics(cluster)["rollcall_step"] > before["rollcall_step"])
            after = metrics(cluster)
            (cluster.run.root / "finish").touch()
            assert cluster.exit_codes(within=90) == {HEAD: 0}
        finally:
            cluster.close()
        assert hook.events == ["start", "failure", "recovery", "end"]
        assert hook.taken[-1]["details"]["outcome"] == "finished"
        assert [message["attempt"] for message in hook.taken[1:]] == [1, 2, 2]
    assert before["rollcall_attempts_total"] == 1
    assert after["rollcall_attempts_total"] == 2
    assert after["rollcall_failures_total unknown"] == 1
    assert after["rollcall_restarts_left"] == after["rollcall_restarts_allowed"] == 3
    assert after["rollcall_phase training"] == 1
    assert 0 < after["rollcall_effective_time_ratio"] < 1
    said = [json.loads(line) for line in cluster.said(HEAD).splitlines()]
    assert {"start", "failure", "outcome", "progress"} <= {row.get("event") for row in said}
    out = tmp_path / "bundle.tar.gz"
    done = cluster.ask("bundle", str(cluster.run.root), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    with tarfile.open(out) as archive:
        members = {name.rpartition("/")[2] for name in archive.getnames()}
        texts = [archive.extractfile(name).read() for name in archive.getnames()]  # type: ignore[union-attr]
    assert {"journal.jsonl", "result.json", "head.log", "attempt-2.log"} <= members
    printed = (cluster.run.logs / "actors-head.log").read_text()
    assert len(re.findall(r"\(Member pid=\d+\) a member is here\n", printed)) == 2
    secrets = [PATH, cluster.run.token.read_text().strip()]
    outputs = [cluster.said(HEAD).encode(), cluster.run.journal.read_bytes(), *texts]
    assert [one for one in secrets for text in outputs if one.encode() in text] == []
