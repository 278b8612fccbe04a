"""Reads the body of a request, and notices the end of its connection."""

from __future__ import annotations

import asyncio

from starlette.requests import Request


async def body_of(request: Request, most: int) -> bytes:
    """Return the body. Raises ValueError if it is longer than `most` bytes, and keeps no more."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise ValueError(f"the body is longer than {most} bytes")
    return bytes(content)


async def hangs_up_before(event: asyncio.Event, request: Request, timeout: float) -> bool:
    """Wait for `event`, for at most `timeout` s; return whether the connection ended before."""
    answer = asyncio.create_task(event.wait())
    gone = asyncio.create_task(_disconnected(request))
    try:
        ended, _ = await asyncio.wait(
            {answer, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        return gone in ended
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
