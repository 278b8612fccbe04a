"""Logs of workers that do not share the run directory: the head appends what they send."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from contract.files.plain_files import append_plain
from entrypoint.cluster.request_io import body_of
from entrypoint.run.run_dir_reads import RunDirReads

MOST_BYTES = 256 * 1024
"""Limit for one part of a log."""


def belongs(file: str, node: str) -> bool:
    """Pure: return whether a worker of that name may write the file of this name."""
    own = (f"worker-{node.removeprefix('worker-')}.log", f"-{node}.log", f"-{node}.txt")
    return file == own[0] or (bool(re.fullmatch(r"[\w.-]{1,200}", file)) and file.endswith(own[1:]))


class WorkerLogs:
    """The head's side of POST /v1/log."""

    def __init__(self, directory: Path, reads: RunDirReads) -> None:
        self._directory = directory
        self._reads = reads
        self._writing = threading.Lock()
        self._ends: dict[tuple[str, str], int] = {}
        """(Life of the file, its name) → the offset in the worker's file up to which it is here."""

    async def take(self, request: Request) -> Response:
        """Append a part of a log. A part that is sent again is appended once."""
        from entrypoint.cluster import request_format

        try:
            part = request_format.query(request_format.LogPart, request.query_params)
            content = await body_of(request, MOST_BYTES)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        if not belongs(part.file, part.node):
            sentence = f"{part.file} is not a log of {part.node}"
            return JSONResponse({"error": sentence}, status_code=400)
        await self._reads.ask(partial(self.append, (part.life, part.file), part.offset, content))
        return JSONResponse({"taken": True})

    def append(self, key: tuple[str, str], offset: int, content: bytes) -> None:
        """Raises OSError."""
        with self._writing:
            known = self._ends.get(key, offset)
            new = content[max(0, known - offset) :]
            if new:
                self._directory.mkdir(parents=True, exist_ok=True)
                append_plain(self._directory / key[1], new)
            self._ends[key] = max(known, offset + len(content))
