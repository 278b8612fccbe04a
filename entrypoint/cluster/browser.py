"""What a browser needs: a form that asks for the key, a cookie that holds it, strict headers."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from importlib.resources import files
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from entrypoint.cluster.access import SHOWN_FIRST
from entrypoint.cluster.request_io import body_of
from entrypoint.run import inline_code

MOST_BYTES = 4096
"""Limit for the form's answer."""
SOURCES = files("entrypoint.cluster") / "page"
SIGN_IN = "sign_in.js"
SCRIPTS = (
    *(SIGN_IN, "view.js", "nodes.js", "events.js", "controls.js", "curves.js", "comparison.js"),
    *("runs.js", "samples.js", "logs.js", "main.js"),
)


def _page() -> str:
    """Return the page as one file, which loads nothing else."""
    own = [(SOURCES / name).read_text() for name in SCRIPTS]
    scripts = "".join(f"<script>{code}</script>\n" for code in (*inline_code.SCRIPTS, *own))
    styles = "".join(
        f"<style>{code}</style>\n"
        for code in (inline_code.STYLE, (SOURCES / "style.css").read_text())
    )
    page = (SOURCES / "index.html").read_text().replace("<!-- styles -->\n", styles)
    return page.replace("<!-- scripts -->\n", inline_code.LICENCE + scripts)


PAGE = _page()


def page_of_list(name: str) -> str:
    """Return the page that shows a list of runs first. `name`: of their directory."""
    return PAGE.replace("<body>", f'<body data-list="{html.escape(name)}">')


FORM = (SOURCES / "sign_in.html").read_text() + (
    f"<script>{(SOURCES / SIGN_IN).read_text()}</script>\n"
)
WRONG = '<p role="alert">That key is not of this run.</p>'
ONWARD = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={}">'
    "<title>Rollcall</title>"
)
"""Loads the page again. A redirect would not do: after a click in another site's page, a browser
sends no SameSite=Strict cookie along a chain of redirects."""
INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)


def policy(*pages: str) -> str:
    """Pure: return the Content-Security-Policy under which only the pages' own code runs."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, code in (found for page in pages for found in INLINE.findall(page)):
        hashes[kind].append(inline_code.source(code))
    sources = {f"{kind}-src": " ".join(found) or "'none'" for kind, found in hashes.items()}
    directives = {
        "default-src": "'none'",
        **sources,
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {source}" for name, source in directives.items())


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": policy(PAGE, FORM),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer: also text from logs and completions is never a page of its own."""


class StrictHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, sent)


def form(*, wrong: bool) -> Response:
    """Return the form that asks for a key. `wrong`: the key that was given opens nothing."""
    return HTMLResponse(FORM.replace("<!-- wrong -->", WRONG if wrong else ""), status_code=401)


async def key_in_form(request: Request) -> str:
    """Return the key that the form has brought; "" if there is none."""
    try:
        given = parse_qs((await body_of(request, MOST_BYTES)).decode("ascii"))
    except ValueError:
        return ""
    return given.get("token", [""])[0].strip()


def onward(request: Request, cookie: str, key: str) -> Response:
    """Give the browser its key in a cookie, and load the page without a key in its address."""
    shown = request.query_params.get(SHOWN_FIRST)
    place = f"#{urlencode({SHOWN_FIRST: shown})}" if shown else ""
    answer = HTMLResponse(ONWARD.format(html.escape(f"./{place}")))
    is_https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    answer.set_cookie(cookie, key, httponly=True, samesite="strict", secure=is_https)
    return answer


def is_own(request: Request) -> bool:
    """Whether a request comes from a page of this control port, and not of another port or site."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    return urlsplit(request.headers.get("origin", "")).netloc == request.headers.get("host")
