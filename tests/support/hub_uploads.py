"""A hub that takes models, over HTTP, as huggingface_hub's client pushes them: with LFS."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import huggingface_hub.constants
import pytest
import yaml

from tests.support.http_serving import Handler, serving

TOKEN = "hf_" + "x1" * 20
SHA = "89abcdef0123456789abcdef0123456789abcdef"


class HubOfUploads:
    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, bool] = {}
        """Whether each is private."""
        self.files: dict[str, dict[str, bytes]] = {}
        """By repository, after its last commit."""
        self.refuses: tuple[int, str] | None = None
        """Status and text of the answer to a commit."""
        self.slow = 0.0
        """Seconds before the answer to a commit."""
        self._objects: dict[str, bytes] = {}

    def create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = (
            f"{asked['organization']}/{asked['name']}" if "organization" in asked else asked["name"]
        )
        url = f"{self.url}/{name}"
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": url}
        self.repositories[name] = asked.get("visibility") == "private"
        return 200, {"url": url}

    def preupload(self, asked: dict[str, Any]) -> tuple[int, Any]:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        return 200, {"files": modes}

    def batch(self, asked: dict[str, Any]) -> tuple[int, Any]:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/put/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def put(self, oid: str, data: bytes) -> None:
        self._objects[oid] = data

    def commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        time.sleep(self.slow)
        if self.refuses:
            return self.refuses[0], {"error": self.refuses[1]}
        files = self.files.setdefault(name, {})
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self._objects[value["oid"]]
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{SHA}", "commitOid": SHA}


@contextmanager
def _serving() -> Iterator[HubOfUploads]:
    hub = HubOfUploads()

    class Requests(Handler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            hub.put(self.path.rpartition("/")[2], self._body())
            self._answer(200, {})

        def do_GET(self) -> None:
            self._answer(200, {"id": "owner/model", "sha": SHA, "siblings": []})

        def do_POST(self) -> None:
            body, path = self._body(), self.path.partition("?")[0]
            if self.headers["authorization"] != f"Bearer {TOKEN}":
                self._answer(401, {"error": "Invalid username or password."})
            elif path == "/api/validate-yaml":  # of the model card
                yaml.safe_load(json.loads(body)["content"].split("---")[1])
                self._answer(200, {"errors": [], "warnings": []})
            elif path == "/api/repos/create":
                self._answer(*hub.create(json.loads(body)))
            elif "/preupload/" in path:
                self._answer(*hub.preupload(json.loads(body)))
            elif path.endswith("/info/lfs/objects/batch"):
                self._answer(*hub.batch(json.loads(body)))
            else:
                name = path.removeprefix("/api/models/").partition("/commit/")[0]
                self._answer(*hub.commit(name, [json.loads(line) for line in body.splitlines()]))

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding") == "chunked":
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def _answer(self, status: int, row: Any) -> None:
            self.answer(status, json.dumps(row).encode())

    with serving(Requests) as hub.url:
        yield hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubOfUploads]:
    """A hub of its own, which huggingface_hub asks with the right token."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    with _serving() as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        yield server
