"""A reward server that thinks for a while: the share of one digit, some seconds after the question.

It answers any number of questions at once, as a served judge model does.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from env.http.protocol import read_request, write_answer
from env.types import Score

DIGIT = "1"


def main() -> int:
    """Prints its port once it listens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    seconds = parser.parse_args().seconds

    async def answer(request: Request) -> JSONResponse:
        asked = read_request(await request.body())
        await asyncio.sleep(seconds)
        return JSONResponse(write_answer([Score.of(share(one.response)) for one in asked]))

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    app = Starlette(routes=[Route("/get_reward", answer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    return 0


def share(text: str) -> float:
    return text.count(DIGIT) / max(1, len(text))


if __name__ == "__main__":
    sys.exit(main())
