"""The client of Ray's job API, against a small stand-in for it on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from entrypoint import job
from entrypoint.job import JobClient, JobInfo, JobRefusedError, command_line
from entrypoint.wait import GaveUpError, InterruptedWaitError, NotYetError
from trainer.masks import MASK

TOKEN = "correct-horse-battery"
SECRET = "9f86d081884c7d659a2feaa0c55ad015"
NO_AGENT = (500, "No available agent to submit job, please try again later.")
NEVER = threading.Event()


class FakeRay:
    """Answers as Ray 2.55's dashboard does; what it answers is set by the test."""

    def __init__(self) -> None:
        self.refusals: list[tuple[int, str]] = []
        """What the next submissions are answered; then they are taken."""
        self.submitted: list[dict[str, str]] = []
        self.stopped: list[str] = []
        self.tails: list[list[str]] = []
        """What each connection to the tail sends before it breaks off; the last ends the job."""
        self.log = ""
        self.status = "RUNNING"
        self.tokens: set[str | None] = set()
        routes = [
            Route("/api/jobs/", self._submit, methods=["POST"]),
            Route("/api/jobs/{id}", self._info),
            Route("/api/jobs/{id}/logs", self._logs),
            Route("/api/jobs/{id}/stop", self._stop, methods=["POST"]),
            WebSocketRoute("/api/jobs/{id}/logs/tail", self._tail),
        ]
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> FakeRay:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(5)

    @property
    def url(self) -> str:
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def _submit(self, request: Request) -> Response:
        self.tokens.add(request.headers.get("authorization"))
        if self.refusals:
            status, text = self.refusals.pop(0)
            return PlainTextResponse(text, status)
        self.submitted.append(await request.json())
        return JSONResponse({"submission_id": self.submitted[-1]["submission_id"]})

    async def _info(self, request: Request) -> Response:
        code = {"SUCCEEDED": 0, "FAILED": 3}.get(self.status)
        row = {"status": self.status, "message": None, "driver_exit_code": code}
        return JSONResponse(row, 404 if request.path_params["id"] == "unknown" else 200)

    async def _logs(self, request: Request) -> Response:
        return JSONResponse({"logs": self.log})

    async def _stop(self, request: Request) -> Response:
        self.stopped.append(request.path_params["id"])
        return JSONResponse({"stopped": True})

    async def _tail(self, socket: WebSocket) -> None:
        self.tokens.add(socket.headers.get("authorization"))
        await socket.accept()
        for text in self.tails.pop(0):
            await socket.send_text(text)
        if not self.tails:
            self.status = "SUCCEEDED"
        await socket.close()


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    with FakeRay() as ray:
        yield ray


def submit(ray: FakeRay, stop: threading.Event = NEVER) -> None:
    JobClient(ray.url, TOKEN).submit("one", ["python", "train.py"], {"STEP": "7"}, stop)


def followed(ray: FakeRay, tmp_path: Path) -> tuple[str, list[str]]:
    """What lies in the job's log file, and the lines that were told."""
    told: list[str] = []
    log_to = tmp_path / "attempt-1.log"
    client = JobClient(ray.url, TOKEN, [SECRET])
    client.follow("one", log_to, told.append, threading.Event())
    return log_to.read_bytes().decode(), told


def test_a_submission_is_tried_again_until_ray_has_an_agent(ray: FakeRay) -> None:
    ray.refusals = [NO_AGENT, NO_AGENT]
    submit(ray)
    (body,) = ray.submitted
    assert body["submission_id"] == "one"
    assert body["entrypoint"].endswith("&& exec env STEP=7 python train.py")
    assert ray.tokens == {f"Bearer {TOKEN}"}


def test_a_submission_whose_answer_was_lost_is_not_made_twice(ray: FakeRay) -> None:
    ray.refusals = [(500, "Traceback ...\nValueError: Job with submission_id one already exists.")]
    submit(ray)
    assert ray.submitted == []


def test_what_ray_refuses_is_not_tried_again(ray: FakeRay) -> None:
    ray.refusals = [(400, "Traceback ...\nTypeError: entrypoint must be a string\n")]
    with pytest.raises(JobRefusedError, match=r"^TypeError: entrypoint must be a string$"):
        submit(ray)
    assert ray.submitted == []


def test_a_submission_is_given_up_in_time(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SUBMIT_TIMEOUT_SECONDS", 0.3)
    ray.refusals = [NO_AGENT] * 100
    with pytest.raises(GaveUpError, match="No available agent"):
        submit(ray)


def test_a_stop_ends_the_tries(ray: FakeRay) -> None:
    ray.refusals = [NO_AGENT] * 100
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(InterruptedWaitError):
        submit(ray, stop)


def test_a_log_that_breaks_off_and_begins_again_is_copied_once(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "POLL_SECONDS", 0.01)
    ray.tails = [["one\nt", "w"], ["one\n"], [], ["one\ntwo\nthr"]]
    ray.log = "one\ntwo\nthree"
    assert followed(ray, tmp_path) == ("one\ntwo\nthree", ["one", "two", "three"])
    assert ray.tokens == {f"Bearer {TOKEN}"}


def test_the_log_of_a_job_that_was_over_before_it_was_followed_is_whole(
    ray: FakeRay, tmp_path: Path
) -> None:
    ray.status, ray.log = "FAILED", "Traceback\nValueError: no\n"
    text, told = followed(ray, tmp_path)
    assert text == ray.log
    assert told == ["Traceback", "ValueError: no"]


def test_what_is_secret_is_masked_in_the_log_wherever_the_tail_is_cut(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "POLL_SECONDS", 0.01)
    ray.log = f"key {SECRET}\r\nsent {TOKEN}\nhttp://me:pass@rewards --hf_token abc\n401: {SECRET}"
    ray.tails = [list(ray.log)]
    text, told = followed(ray, tmp_path)
    assert text == (
        f"key {MASK}\r\nsent {MASK}\nhttp://me:{MASK}@rewards --hf_token {MASK}\n401: {MASK}"
    )
    assert told == text.split("\n")


def test_a_line_is_in_the_log_as_soon_as_it_is_whole(tmp_path: Path) -> None:
    told: list[str] = []
    with (tmp_path / "log").open("ab", buffering=0) as file:
        copy = job._Copy(file, told.append, frozenset())
        copy.take("one\n 10%|#    |\r 20%|##   |\r 30")
        assert (tmp_path / "log").read_bytes() == b"one\n 10%|#    |\r 20%|##   |\r"
        assert told == ["one"]


def test_what_a_lost_job_said_last_is_in_the_log(ray: FakeRay, tmp_path: Path) -> None:
    lost = threading.Event()
    lost.set()
    ray.tails = [["not a whole line"], []]
    JobClient(ray.url, TOKEN).follow("one", tmp_path / "log", print, lost)
    assert (tmp_path / "log").read_text() == "not a whole line"


@pytest.mark.parametrize("place", ["/dev/full", "/proc/no/such/log"])
def test_a_log_that_the_disk_does_not_take_is_followed_all_the_same(
    ray: FakeRay, place: str
) -> None:
    ray.status, ray.log = "FAILED", "OSError: No space left on device\n"
    told: list[str] = []
    JobClient(ray.url, TOKEN).follow("one", Path(place), told.append, threading.Event())
    assert told == ["OSError: No space left on device"]


def test_a_job_that_went_away_with_its_ray_is_not_followed_for_ever(
    ray: FakeRay, tmp_path: Path
) -> None:
    lost = threading.Event()
    follow = JobClient(ray.url, TOKEN).follow
    arguments = ("unknown", tmp_path / "log", print, lost)
    follower = threading.Thread(target=follow, args=arguments, daemon=True)
    ray.tails = [[] for _ in range(100)]
    follower.start()
    lost.set()
    follower.join(5)
    assert not follower.is_alive()


def test_the_end_of_a_job_is_known_with_its_exit_code(ray: FakeRay) -> None:
    client = JobClient(ray.url, TOKEN)
    assert client.info("one") == JobInfo("RUNNING")
    assert not client.info("one").ended
    ray.status = "FAILED"
    assert client.info("one") == JobInfo("FAILED", driver_exit_code=3)
    assert client.info("one").ended


def test_a_ray_that_does_not_know_the_job_or_does_not_answer_says_nothing_of_its_end(
    ray: FakeRay,
) -> None:
    with pytest.raises(NotYetError):
        JobClient(ray.url, TOKEN).info("unknown")
    with pytest.raises(NotYetError):
        JobClient("http://127.0.0.1:9", TOKEN).info("one")


def test_a_stop_is_passed_on_and_does_not_fail_where_ray_is_gone(ray: FakeRay) -> None:
    JobClient(ray.url, TOKEN).stop("one")
    assert ray.stopped == ["one"]
    JobClient("http://127.0.0.1:9", TOKEN).stop("one")


def test_the_command_runs_here_with_its_variables_as_the_very_process_that_was_started() -> None:
    code = "import json, os; print(json.dumps([os.getpid(), os.environ['NOTE'], os.getcwd()]))"
    line = command_line([sys.executable, "-c", code], {"NOTE": "a 'b' $c"})
    shell = subprocess.Popen(["/bin/sh", "-c", line], cwd="/", stdout=subprocess.PIPE, text=True)
    output, _ = shell.communicate(timeout=20)
    assert json.loads(output) == [shell.pid, "a 'b' $c", os.getcwd()]  # noqa: PTH109
