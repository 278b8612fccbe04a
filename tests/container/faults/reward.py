"""A reward server that a test breaks: real HTTP, real scores, and eight ways to fail."""

from __future__ import annotations

import json
import threading
import time
from enum import StrEnum
from http.server import ThreadingHTTPServer
from typing import Any

from env.http.protocol import read_request, write_answer
from env.registry import reward_function
from tests.support.http_serving import Handler

TASK = "arithmetic-partial"
WORK_SECONDS = 0.25
"""What a request takes: it sets the pace of the training."""
SLOW_SECONDS = 6.0


class Mood(StrEnum):
    WELL = "well"
    SLOW = "slow"
    ERROR = "error"
    GARBAGE = "garbage"
    SHORT = "short"
    NAN = "nan"
    LOGIN = "login"
    AWAY = "away"


class RewardServer:
    """Serves in a thread, between `start` and `stop`, always on the same port."""

    def __init__(self) -> None:
        self.mood = Mood.WELL
        self._port = 0
        self._score = reward_function(TASK)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/get_reward"

    def start(self) -> None:
        outer = self

        class Requests(Handler):
            def do_GET(self) -> None:
                self.answer(200, b'{"status": "ready"}')

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(*outer.answer(body))

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who asked was killed meanwhile."""

        self._server = Server(("127.0.0.1", self._port), Requests)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> RewardServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """Status and text."""
        requests = read_request(body)
        time.sleep(SLOW_SECONDS if self.mood is Mood.SLOW else WORK_SECONDS)
        answer = write_answer(self._score(requests))
        match self.mood:
            case Mood.ERROR:
                return 500, b"the judge has a headache"
            case Mood.LOGIN:
                return 302, b"<html>log in</html>"
            case Mood.AWAY:
                return 404, b"no such service"
            case Mood.GARBAGE:
                return 200, b"<html>not what was asked</html>"
            case Mood.SHORT:
                answer["rewards"] = answer["rewards"][:-1]
            case Mood.NAN:
                answer["rewards"] = [float("nan")] * len(requests)
        return 200, json.dumps(answer).encode()
