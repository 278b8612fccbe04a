"""`python -m env.server --task arithmetic`: a reward function over HTTP, OpenRLHF's protocol.

GET /health answers 200 once rewards can be had; POST /get_reward scores (see env.http.protocol).
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

from env.http.arguments import Help, Parser, add_limits, limits_of, port
from env.http.batching import Batcher, Limits, QueueFullError
from env.http.post import shown
from env.http.protocol import (
    RequestError,
    UnscoredError,
    read_request,
    write_answer,
    write_plain_answer,
)
from env.http.service_key import VARIABLE, ServiceKeyError, default_host, is_open, wanted_at
from env.http.serving import (
    listen,
    log_to_stderr,
    read_body,
    refusal,
    run,
    why_not_listening,
)
from env.registry import REWARDS, RewardSpecError, reward_function
from env.rewards.guard import guard
from env.types import RewardFunction

logger = logging.getLogger("env.server")  # also where it runs as __main__

MAX_BODY = 64 * 2**20
PROTOCOLS = ("openrlhf", "openrlhf-m")


def create_app(
    task: str,
    reward: RewardFunction,
    limits: Limits,
    *,
    max_body: int = MAX_BODY,
    plain: bool = False,
) -> Starlette:
    """The application; bodies above `max_body` bytes get 413. `plain`: OpenRLHF-M's answers."""
    write = write_plain_answer if plain else write_answer
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
        try:
            body = await read_body(request, max_body)
            if body is None:
                return refusal(413, f"the body is above {max_body} bytes; send fewer completions")
            requests = read_request(body)
            if len(requests) > limits.max_queue:
                return refusal(413, f"{len(requests)} completions; at most {limits.max_queue}")
            return JSONResponse(write(await batcher.submit(requests)))
        except RequestError as error:
            return refusal(400, str(error))
        except UnscoredError as error:
            return refusal(500, str(error))
        except QueueFullError as error:
            return refusal(429, str(error), {"Retry-After": "1"})

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/get_reward", get_reward, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def serve(task: str, reward: RewardFunction, arguments: argparse.Namespace) -> int:
    """Serve `reward` until SIGTERM or SIGINT. Return the exit code."""
    host = arguments.host
    try:
        host = host or default_host()
        listening = listen(host, arguments.port)
        key = wanted_at(listening)
    except ServiceKeyError as error:
        return fail(os.EX_USAGE, str(error))
    except OSError as error:
        return fail(os.EX_UNAVAILABLE, why_not_listening(host, arguments.port, error))
    logger.info("Rewards for %s on %s port %d.", task, *listening.getsockname()[:2])
    if not (arguments.host or key or is_open()):
        logger.info("Only this machine reaches it. For others set %s.", VARIABLE)
    plain = arguments.protocol == "openrlhf-m"
    run(create_app(task, reward, limits_of(arguments), plain=plain), listening, key)
    return 0


def fail(code: int, message: str) -> int:
    print(f"reward server: {message}", file=sys.stderr)
    return code


def new_parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every reward server: its address, and its batches."""
    parser = Parser(
        prog=prog,
        description=description,
        formatter_class=Help,
    )
    option = parser.add_argument
    option("--host", help=f"address to listen on; not given: all with {VARIABLE}, else 127.0.0.1")
    option("--port", type=port, default=5000, help="0: any that is free")
    option("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0], help="form of the answers")
    add_limits(parser, Limits(), "completions", "call")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("python -m env.server", __doc__)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--task", help=f"{', '.join(REWARDS)}, or a .py file with reward_func")
    given.add_argument(
        "--reward", action="append", help="one of several with weights, added up: gsm8k:1"
    )
    arguments = parser.parse_args(argv)
    log_to_stderr()
    spec = arguments.reward or arguments.task
    try:
        reward = reward_function(spec)
    except RewardSpecError as error:
        return fail(os.EX_USAGE, f"{'--reward' if arguments.reward else '--task'}: {error}")
    return serve(shown(spec if isinstance(spec, str) else " ".join(spec)), reward, arguments)


if __name__ == "__main__":
    sys.exit(main())
