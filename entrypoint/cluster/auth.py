"""Authentication of the control port: by bearer, by the address of a link, or by cookie."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from entrypoint.cluster import browser
from entrypoint.cluster.access import KEYS, NO_SUBMISSIONS, RENEWAL, Access, Keys, needed, too_weak
from entrypoint.net.paths import CERTIFICATE
from env.http.connections import PROVE

ACCESS = "rollcall.access"
"""Name of the scope's extension that has what the request's key opens."""
ELSEWHERE = "a page of another origin asks for this in the name of its reader"
NOT_OF_COOKIE = "a page gets no key: what a cookie holds stays in it"
IN_ADDRESS = ("token", "read")
"""Names of a key in an address. Logs mask what follows `token=`, so links for logs have `read=`."""

OPEN = ("/healthz", CERTIFICATE)


class Authentication:
    """Requires a key of the run for every path that is not OPEN."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            request = Request(scope, receive)
            if (answer := await self._answer(request)) is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that does not reach its path; None if it does."""
        path = request.scope["path"]  # the URL's path would depend on the Host header
        is_page = path == "/"
        if is_page and request.method == "POST":
            return self._signed_in(request, await browser.key_in_form(request))
        given, is_cookie = self._given(request)
        if path == RENEWAL and not is_cookie and self._keys.renews(given):
            request.scope["extensions"][PROVE]()
            return None
        access = self._keys.access(given)
        if access is Access.NONE or path == RENEWAL:
            if is_page and "text/html" in request.headers.get("accept", ""):
                return browser.form(wrong=bool(given) and not is_cookie)
            if at := self._keys.retired(given):
                row = {"error": f"the run's token was changed at {at}", "retired": at}
                return JSONResponse(row, status_code=401)
            return JSONResponse({"error": "wrong or missing token"}, status_code=401)
        request.scope["extensions"][PROVE]()
        request.scope["extensions"][ACCESS] = access
        if access < (need := needed(request.method, path)):
            row = {"error": too_weak(need, access), "needs": need.key}
            return JSONResponse(row, status_code=403)
        if need is Access.SUBMIT and not self._keys.takes_jobs:
            return JSONResponse({"error": NO_SUBMISSIONS}, status_code=403)
        if is_cookie and path == KEYS:
            return JSONResponse({"error": NOT_OF_COOKIE}, status_code=403)
        if is_cookie and request.method not in ("GET", "HEAD") and not browser.is_own(request):
            return JSONResponse({"error": ELSEWHERE}, status_code=403)
        if is_page and any(name in request.query_params for name in IN_ADDRESS):
            return self._signed_in(request, given)
        return None

    def _signed_in(self, request: Request, key: str) -> Response:
        access = self._keys.access(key)
        if access is Access.NONE:
            return browser.form(wrong=True)
        return browser.onward(request, self._keys.cookie, self._keys.for_browser(access))

    def _given(self, request: Request) -> tuple[str, bool]:
        """Return the key that a request brings, "" if none, and whether a cookie holds it."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return bearer, False
        for name in IN_ADDRESS:
            if key := request.query_params.get(name):
                return key, False
        return request.cookies.get(self._keys.cookie, ""), True
