"""`rollcall open RUN`: a server that reads run directories, and does nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from contract.run_dir import RunFiles
from entrypoint.cluster.client import DeclinedError
from entrypoint.cluster.kept_runs import KeptRunsServer
from entrypoint.job.job_queue import JobQueue
from entrypoint.net.http import tls
from tests.support import reported_runs
from tests.support.job_head import JobHead, finishes, soon, until_stopped
from tests.support.waiting import eventually


@contextmanager
def reader(server: KeptRunsServer) -> Iterator[httpx.Client]:
    """A client that has the link."""
    link = urlsplit(server.link)
    key = parse_qs(link.query)["read"][0]
    headers = {"Authorization": f"Bearer {key}"}
    base = f"http://{link.netloc}"
    with httpx.Client(base_url=base, headers=headers, verify=tls()) as client:
        eventually(lambda: client.get("/healthz").is_success)
        yield client


def test_a_run_that_is_over_has_the_state_that_its_head_would_tell(tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    run.logs.mkdir()
    (run.logs / "head.log").write_text("the head's words\n")
    with KeptRunsServer(run.root) as server, reader(server) as client:
        state = client.get("/v1/state").json()
        assert (state["is_live"], state["phase"], state["attempt"]) == (False, "ended", 2)
        assert (state["outcome"]["outcome"], state["run"]["model"]) == ("finished", "tiny-7b")
        assert client.get("/v1/logs").json() == {"logs": ["head"]}
        assert client.get("/v1/logs/head?offset=0").json()["text"] == "the head's words\n"
        assert len(client.get("/v1/curves").json()["steps"]) == 60
        assert client.get("/v1/runs").json()["runs"] == []


def test_each_run_of_a_directory_is_read_by_its_path_there(tmp_path: Path) -> None:
    reported_runs.with_faults(tmp_path / "a" / "run")
    reported_runs.tells_loss(tmp_path / "b")
    with KeptRunsServer(tmp_path) as server, reader(server) as client:
        assert {row["id"] for row in client.get("/v1/runs").json()["runs"]} == {"a/run", "b"}
        assert client.get("/v1/state?job=a/run").json()["run"]["recipe"] == "builtin"
        curves = client.get("/v1/curves?job=b").json()  # its steps are in the journal alone
        assert "train/loss" in curves["series"]
        compared = client.get("/v1/comparison?job=b&job=a/run").json()
        assert [row["id"] for row in compared["runs"]] == ["b", "a/run"]
        assert {"loss, last", "reward, best"} <= {row["title"] for row in compared["values"]}
        assert client.get("/v1/comparison?job=b&job=nosuch").status_code == 404
        many = "&".join(f"job={number}" for number in range(9))
        assert client.get(f"/v1/comparison?{many}").status_code == 400
        rest = client.get(f"/v1/curves?job=b&version={curves['version']}").json()
        assert rest["steps"] == []
        assert 'data-list="' in client.get("/").text


@pytest.mark.parametrize("job", ["", "../out", "/etc", "a/..", "nosuch"])
def test_no_other_directory_is_read(tmp_path: Path, job: str) -> None:
    reported_runs.tells_nothing(tmp_path / "in" / "a")
    reported_runs.tells_nothing(tmp_path / "out")
    with KeptRunsServer(tmp_path / "in") as server, reader(server) as client:
        for path in ("state", "curves", "samples", "logs", "events", "logs/head"):
            answer = client.get(f"/v1/{path}", params={"job": job})
            assert answer.status_code == 404, path
        assert "there is no run" in answer.json()["error"]


def test_a_link_in_a_run_is_an_error_with_its_name(tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    run.run.unlink()
    (tmp_path / "secret").write_text('{"model": "the secret"}')
    run.run.symlink_to(tmp_path / "secret")
    with KeptRunsServer(run.root) as server, reader(server) as client:
        answer = client.get("/v1/state")
        assert answer.status_code == 503
        assert "run.json: is a link" in answer.json()["error"]


def test_the_server_is_on_loopback_and_only_reads(tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    with KeptRunsServer(run.root) as server, reader(server) as client:
        assert server.link.startswith("http://127.0.0.1:")
        for path in ("/v1/stop", "/v1/jobs", "/v1/jobs/a/stop", "/v1/check-in"):
            assert client.post(path).status_code in (403, 404, 405)
        for path in ("/", "/v1/state", "/v1/runs", "/v1/curves", "/v1/samples", "/v1/logs"):
            assert client.get(path).is_success
            assert client.get(path, headers={"Authorization": ""}).status_code == 401
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before


def test_two_servers_have_two_keys_and_a_taken_port_is_an_error(tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    one, other = KeptRunsServer(run.root), KeptRunsServer(run.root)
    assert urlsplit(one.link).query != urlsplit(other.link).query
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        KeptRunsServer(run.root, taken.getsockname()[1])


def test_a_job_has_the_name_with_which_it_was_submitted(tmp_path: Path) -> None:
    with JobHead(tmp_path, true=finishes) as job_head:
        client = job_head.head.client()
        body = {"job": ["true"], "name": "low rate"}
        job = str(client.command("POST", "/v1/jobs", json=body)["id"])
        soon(lambda: job_head.state(job) == "finished")
        (found,) = job_head.queue.rows()
        assert found["name"] == "low rate"
        of_job = JobQueue(
            job_head.settings, job_head.journal, job_head.inbox, job_head.head.control._registry
        )  # as the next head reads it
        assert [row["name"] for row in of_job.rows()] == ["low rate"]
        with pytest.raises(DeclinedError, match="name"):
            client.command("POST", "/v1/jobs", json={**body, "name": "a\nb"})


def test_a_head_lists_the_jobs_of_its_queue_and_shows_one_that_is_over(tmp_path: Path) -> None:
    with JobHead(tmp_path, true=finishes, sleep=until_stopped) as job_head:
        head, queue = job_head.head, job_head.queue
        first, second, third = (
            queue.submit([word], {})["id"] for word in ("true", "sleep", "sleep")
        )
        soon(lambda: job_head.state(first) == "finished" and head.control.jobs.shown == second)
        reported_runs.tells_loss(tmp_path / "told")  # what a job's own supervisor writes
        told = RunFiles(tmp_path / "told").journal
        told.replace(RunFiles(job_head.run.jobs / first).journal)
        rows = {row["id"]: row["state"] for row in head.get("/v1/runs").json()["runs"]}
        assert (rows[first], rows[third]) == ("finished", "queued")
        state = head.get(f"/v1/state?job={first}").json()
        assert (state["is_live"], state["job"], state["phase"]) == (False, first, "ended")
        assert head.get(f"/v1/state?job={second}").json()["is_live"]
