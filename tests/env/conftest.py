"""Real servers on loopback: one that keeps a script of faults, one that runs our application."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from starlette.applications import Starlette

from env.http.known_servers import KNOWN
from env.types import RewardRequest
from tests.support.scripted_server import Script, ScriptedServer


@pytest.fixture(autouse=True)
def no_known_servers() -> Iterator[None]:
    """A port may be that of an earlier test's server."""
    KNOWN.clear()
    yield
    KNOWN.clear()


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    with contextlib.ExitStack() as stack:

        def start(script: Script, port: int = 0, **headers: str) -> ScriptedServer:
            server = ScriptedServer(script, port, **headers)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def serve() -> Iterator[Callable[[Starlette], str]]:
    """Runs an application under uvicorn; gives its address, without a path."""
    with contextlib.ExitStack() as stack:

        def start(app: Starlette) -> str:
            listening = socket.create_server(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
            thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(10)

            stack.callback(stop)
            deadline = time.monotonic() + 10
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.01)
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield start


@pytest.fixture
def requests() -> list[RewardRequest]:
    """Five sums; the reward that the scripted servers give is the label's number."""
    return [RewardRequest(f"{n}+0={n}", f"{n}+0=", str(n)) for n in range(5)]
