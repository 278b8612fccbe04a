"""`python -m env.server --task arithmetic`: a reward function over HTTP, OpenRLHF's protocol.

GET /health answers 200 once rewards can be had; POST /get_reward scores (see env.protocol).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from env.arguments import Parser, port, positive
from env.batching import Batcher, Limits, QueueFullError
from env.http_server import listen, read_body, refusal, run, why_not_listening
from env.protocol import RequestError, read_request, write_answer
from env.registry import REWARDS, RewardSpecError, reward_function
from env.rewards.guard import guard
from env.types import RewardFunction

logger = logging.getLogger("env.server")  # also where it runs as __main__

MAX_BODY = 64 * 2**20


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
            {"status": "ready", "task": task, "waiting": batcher.waiting, "scored": batcher.done}
        )

    async def get_reward(request: Request) -> JSONResponse:
        body = await read_body(request, max_body)
        if body is None:
            return refusal(413, f"the body is above {max_body} bytes; send fewer completions")
        try:
            requests = read_request(body)
            if len(requests) > limits.max_queue:
                return refusal(413, f"{len(requests)} completions; at most {limits.max_queue}")
            return JSONResponse(write_answer(await batcher.submit(requests)))
        except RequestError as error:
            return refusal(400, str(error))
        except QueueFullError as error:
            return refusal(429, str(error), {"Retry-After": "1"})

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/get_reward", get_reward, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        spec = arguments.reward or arguments.task
        reward = reward_function(spec)
        listening = listen(arguments.host, arguments.port)
    except RewardSpecError as error:
        return _fail(os.EX_USAGE, f"{'--reward' if arguments.reward else '--task'}: {error}")
    except OSError as error:
        return _fail(os.EX_UNAVAILABLE, why_not_listening(arguments.host, arguments.port, error))
    limits = Limits(
        max_batch=arguments.max_batch,
        max_wait=arguments.max_wait_ms / 1000,
        max_queue=arguments.max_queue,
    )
    task = spec if isinstance(spec, str) else " ".join(spec)
    logger.info("Rewards for %s on %s port %d.", task, *listening.getsockname()[:2])
    run(create_app(task, reward, limits), listening)
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
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--task", help=f"{', '.join(REWARDS)}, or a .py file with reward_func")
    given.add_argument(
        "--reward", action="append", help="one of several with weights, added up: gsm8k:1"
    )
    option("--host", default="0.0.0.0", help="address to listen on; :: for IPv4 and IPv6")
    option("--port", type=port, default=5000, help="0: any that is free")
    option("--max-batch", type=positive, default=limits.max_batch, help="completions a call")
    option("--max-wait-ms", type=float, default=limits.max_wait * 1000, help="to fill a batch")
    option("--max-queue", type=positive, default=limits.max_queue, help="completions that wait")
    return parser


if __name__ == "__main__":
    sys.exit(main())
