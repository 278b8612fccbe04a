"""Asks each request for the key of a reward or retrieval server."""

from __future__ import annotations

import base64
import hmac

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from env.http.connections import PROVE
from env.http.service_key import INSECURE, VARIABLE

HEALTH = "/health"
WANTED = (
    f"this server asks for its key: send 'Authorization: Bearer KEY', or give its address as "
    f"http://:KEY@HOST:PORT/PATH. The key is in the variable {VARIABLE} of each node, and the "
    f"trainer sends it by itself. With {INSECURE}=1 the server asks for none"
)


class KeyGuard:
    """Requires the key for every path, and tells a stranger only whether the server is ready."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        """`key`: "" if everyone may ask."""
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            if self._key and not self._has_key(request):
                await _refusal(request)(scope, receive, send)
                return
            scope["extensions"][PROVE]()
        await self._app(scope, receive, send)

    def _has_key(self, request: Request) -> bool:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        sent = text.encode()
        if scheme.lower() == "basic":  # as clients send what an address has before its @
            try:
                sent = base64.b64decode(text, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(sent, self._key)


def _refusal(request: Request) -> JSONResponse:
    if request.scope["path"] == HEALTH and request.method in ("GET", "HEAD"):
        return JSONResponse({"status": "ready"})
    return JSONResponse({"error": WANTED}, 401, {"WWW-Authenticate": "Bearer"})
