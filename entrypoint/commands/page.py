"""`open`: the link of the run's page, which a browser of this machine also opens."""

from __future__ import annotations

import argparse
import json
import os
import sys

from contract.exit_codes import ExitCode
from entrypoint.cluster.access import page_link
from entrypoint.commands.head_client import NoAnswerError, ask, token_of, url_of
from entrypoint.config.settings import Settings
from entrypoint.run import token as run_token


def open_page(settings: Settings, options: argparse.Namespace) -> int:
    """Print the link, and open it if a person with a browser asks. Raises NoAnswerError."""
    token = token_of(settings)
    if options.control and run_token.is_read_only(token):
        sentence = "--control needs the run's token, and ROLLCALL_TOKEN is its read-only key"
        raise NoAnswerError(sentence, ExitCode.NOT_ALLOWED)
    ask(settings, "GET", "/v1/state")  # says why a browser would get no answer
    link = page_link(url_of(settings), token, controls=options.control)
    if options.json:
        print(json.dumps({"url": link, "read_only": not options.control}))
    elif options.key:
        print(run_token.read_only(token))
    else:
        print(link, flush=True)
        if has_browser() and not options.no_browser:
            import webbrowser

            webbrowser.open(link)
    return ExitCode.FINISHED


def has_browser() -> bool:
    """Whether a person sits at this terminal, and at a screen that can show a browser."""
    screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return bool(screen) and sys.stdout.isatty()
