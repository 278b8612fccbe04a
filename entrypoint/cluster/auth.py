"""Token authentication of the control port."""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PROVE = "rollcall.prove"
"""Name of the scope's extension to call once a request has shown the token."""


class BearerToken:
    """Requires the token for every path but /healthz: as a bearer, or `?token=` from a browser."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/healthz":
            request = Request(scope)
            scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
            given = bearer if scheme.lower() == "bearer" else request.query_params.get("token", "")
            if not hmac.compare_digest(given.encode(), self._token):
                answer = JSONResponse({"error": "wrong or missing token"}, status_code=401)
                await answer(scope, receive, send)
                return
            scope["extensions"][PROVE]()
        await self._app(scope, receive, send)
