"""A hub of a few repositories, over HTTP, as huggingface_hub asks it; counts downloads."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.support.http_serving import Handler, serving

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves the files of directories as repositories; `slow`: seconds before a file."""

    def __init__(
        self, repositories: Mapping[str, Path], kind: str = "model", slow: float = 0.0
    ) -> None:
        self.contents = {name: _files(directory) for name, directory in repositories.items()}
        self.kind = kind
        self.slow = slow
        self.downloads: Counter[str] = Counter()
        """By path below the repository's name, with @N where it began at byte N."""
        self.cut_at: int | None = None
        """After so many bytes of a file the connection is closed, once."""
        self.url = ""
        self._running = ExitStack()

    def __enter__(self) -> Hub:
        self.url = self._running.enter_context(serving(type("Of", (Requests,), {"hub": self})))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


class Requests(Handler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._find(body=False)

    def do_GET(self) -> None:
        self._find(body=True)

    def _find(self, body: bool) -> None:
        path, kind = self.path.partition("?")[0].lstrip("/"), self.hub.kind
        prefix = "datasets/" if kind == "dataset" else ""
        for name, files in self.hub.contents.items():
            if path.startswith(f"api/{kind}s/{name}/tree/"):
                return self._json([_row(file, data) for file, data in files.items()])
            if path.startswith(f"api/{kind}s/{name}"):
                siblings = [{"rfilename": file} for file in files]
                return self._json({"id": name, "sha": SHA, "siblings": siblings})
            file = path.removeprefix(f"{prefix}{name}/resolve/{SHA}/")
            if file in files:
                return self._file(f"{name}/{file}", files[file], body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _json(self, row: object) -> None:
        self.answer(200, json.dumps(row).encode())

    def _file(self, file: str, data: bytes, body: bool) -> None:
        first = 0
        if body and (asked := self.headers.get("Range")):
            first = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        hub, rest = self.hub, data[first:]
        hub.downloads[f"{file}@{first}" if first else file] += 1
        time.sleep(hub.slow)
        if hub.cut_at is not None and len(rest) > hub.cut_at:
            rest, hub.cut_at = rest[: hub.cut_at], None
            self.wfile.write(rest)
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True
            return
        self.wfile.write(rest)


def ask(monkeypatch: pytest.MonkeyPatch, url: str, home: Path) -> None:
    """Let huggingface_hub in this process ask this hub, with a cache below `home`."""
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def _files(directory: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def _row(file: str, data: bytes) -> dict[str, object]:
    oid = hashlib.sha1(data).hexdigest()
    return {"type": "file", "path": file, "size": len(data), "oid": oid}
