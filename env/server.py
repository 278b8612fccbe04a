"""`python -m env.server --task arithmetic`: a reward function over HTTP, OpenRLHF's protocol.

GET /health answers 200 once rewards can be had; POST /get_reward scores (see env.protocol).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from env.arguments import Parser, port, positive
from env.batching import Batcher, Limits, QueueFullError
from env.protocol import RequestError, read_request, write_answer
from env.registry import REWARDS, RewardSpecError, reward_function
from env.rewards.guard import guard
from env.types import RewardFunction

logger = logging.getLogger("env.server")  # also where it runs as __main__

MAX_BODY = 64 * 2**20
SECONDS_TO_FINISH = 10
"""On SIGTERM, for requests that are under way."""


def create_app(
    task: str, reward: RewardFunction, limits: Limits, *, max_body: int = MAX_BODY
) -> Starlette:
    """The application; bodies above `max_body` bytes get 413."""
    batcher = Batcher(guard(reward), limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        scoring = asyncio.create_task(batcher.run())
        yield
        scoring.cancel()

    async def health(_: Request) -> JSONResponse:
        return JSONResponse(
            {"status": "ready", "task": task, "waiting": batcher.waiting, "scored": batcher.scored}
        )

    async def get_reward(request: Request) -> JSONResponse:
        body = await _body(request, max_body)
        if body is None:
            return _refusal(413, f"the body is above {max_body} bytes; send fewer completions")
        try:
            requests = read_request(body)
            if len(requests) > limits.max_queue:
                return _refusal(413, f"{len(requests)} completions; at most {limits.max_queue}")
            return JSONResponse(write_answer(await batcher.score(requests)))
        except RequestError as error:
            return _refusal(400, str(error))
        except QueueFullError as error:
            return _refusal(429, str(error), {"Retry-After": "1"})

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/get_reward", get_reward, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def _body(request: Request, limit: int) -> bytes | None:
    """The whole body; None as soon as it is above the limit."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            return None
    return bytes(body)


def _refusal(status: int, error: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)


def listen(host: str, number: int) -> socket.socket:
    """A listening socket, IPv4 or IPv6 as `host` is; `::` takes both. Raises OSError."""
    family, *_, address = socket.getaddrinfo(
        host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=1024, dualstack_ipv6=both)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        reward = reward_function(arguments.task)
        listening = listen(arguments.host, arguments.port)
    except RewardSpecError as error:
        return _fail(os.EX_USAGE, f"--task: {error}")
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "another program has it; choose another --port" if taken else error.strerror
        where = f"{arguments.host} port {arguments.port}"
        return _fail(os.EX_UNAVAILABLE, f"cannot listen on {where}: {reason}")
    limits = Limits(
        max_batch=arguments.max_batch,
        max_wait=arguments.max_wait_ms / 1000,
        max_queue=arguments.max_queue,
    )
    # uvicorn finishes its requests, then raises the signal again: being stopped is no failure.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))
    logger.info("Rewards for %s on %s port %d.", arguments.task, *listening.getsockname()[:2])
    config = uvicorn.Config(
        create_app(arguments.task, reward, limits),
        log_level="warning",
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
    )
    uvicorn.Server(config).run(sockets=[listening])
    return 0


def _fail(code: int, message: str) -> int:
    print(f"reward server: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    limits = Limits()
    parser = Parser(
        prog="python -m env.server",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--task", required=True, help=f"{', '.join(REWARDS)}, or a .py file with reward_func")
    option("--host", default="0.0.0.0", help="address to listen on; :: for IPv4 and IPv6")
    option("--port", type=port, default=5000, help="0: any that is free")
    option("--max-batch", type=positive, default=limits.max_batch, help="completions a call")
    option("--max-wait-ms", type=float, default=limits.max_wait * 1000, help="to fill a batch")
    option("--max-queue", type=positive, default=limits.max_queue, help="completions that wait")
    return parser


if __name__ == "__main__":
    sys.exit(main())
