"""A server that takes W&B's rows until `silent` is set. Then it accepts, and never answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.http_serving import Handler, serving

USER = {"id": "u", "username": "me", "entity": "me", "flags": "{}", "teams": {"edges": []}}
PROJECT = {"id": "p", "name": "sums", "entity": {"id": "e", "name": "me"}}
RUN = {"id": "b", "name": "first", "displayName": "first", "config": "{}", "project": PROJECT}
VERSIONS = {"max_cli_version": "0.31.0", "min_cli_version": "0.10.0"}
DATA = {
    "viewer": USER,
    "serverInfo": {"cliVersionInfo": VERSIONS, "features": []},
    "model": {"bucket": None, "name": "sums"},
    "upsertBucket": {"bucket": RUN, "inserted": True},
}
"""Of each of W&B's questions at the beginning of a run, what it needs."""


@dataclass
class WandbServer:
    url: str
    silent: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    server = WandbServer("")

    class Posts(Handler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if server.silent.is_set():
                server.closing.wait()
            else:
                self.answer(200, json.dumps({"data": DATA}).encode())

        do_PUT = do_POST

    with serving(Posts) as server.url:
        try:
            yield server
        finally:
            server.closing.set()
