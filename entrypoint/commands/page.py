"""`open`: the link of the run's page, which a browser of this machine also opens.

`open RUN` serves the page of a run that is over, or of several, until Ctrl-C. `open JOB` shows a
submitted job: on its head's page, else from the run directory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.files import stored_json
from contract.run_dir import RunFiles
from entrypoint.cluster.access import DUTIES, page_link
from entrypoint.commands import packages
from entrypoint.commands.head_client import NoAnswerError, ask, keys_of
from entrypoint.commands.logs import LogsHere, source_of
from entrypoint.commands.named_run import lack, meant
from entrypoint.config.settings import Settings
from entrypoint.run import run_list
from entrypoint.run.flight_record.record import RUNNING


def open_page(settings: Settings, options: argparse.Namespace, found: Path | None = None) -> int:
    """Print the link, and open it if a person with a browser asks. Raises NoAnswerError.

    `found`: the run that counts if no path and no job is given; None: that of the settings.
    """
    path = options.path or found
    if isinstance(path, Path):
        return _open_kept(settings, options, path)
    if path:
        return _open_job(settings, options)
    return _open_head(settings, options)


def _open_job(settings: Settings, options: argparse.Namespace) -> int:
    """Show the job that `options.path` names. Raises NoAnswerError and OSError."""
    try:
        source = source_of(settings, options.path)
        source.over()  # raises if there is no such job
    except NoAnswerError as error:
        sentence = f"{options.path} is neither a path here nor a job: {error}"
        raise NoAnswerError(sentence, error.exit_code) from None
    try:
        return _open_head(settings, options, source.job)
    except NoAnswerError:
        if options.control or options.key or not isinstance(source, LogsHere):
            raise
    return _open_kept(settings, options, RunFiles(settings.run_dir).jobs / source.job)


def _open_head(settings: Settings, options: argparse.Namespace, job: str = "") -> int:
    """Show the page of the head, with the `job` first if there is one. Raises NoAnswerError."""
    keys, url = keys_of(settings)
    wanted = options.key or ("operator" if options.control else "read")
    if wanted not in keys:
        need = DUTIES[wanted].key
        flag = f"--key {options.key}" if options.key else "--control"
        sentence = f"{flag} needs {need}, or a stronger one, in ROLLCALL_TOKEN"
        if wanted == "submit":
            sentence += "; a head with ROLLCALL_SUBMIT=0 takes no jobs, and has none"
        raise NoAnswerError(sentence, ExitCode.NOT_ALLOWED)
    if options.key:
        print(keys[wanted])
    else:
        _show(page_link(url, keys[wanted], controls=options.control, job=job), options)
    return ExitCode.FINISHED


def _open_kept(settings: Settings, options: argparse.Namespace, path: Path) -> int:
    """Serve the page of run directories until Ctrl-C. Raises NoAnswerError and OSError."""
    if options.control or options.key:
        sentence = "`--control` and `--key` are of a head's page: a RUN that is read has none"
        raise NoAnswerError(sentence, ExitCode.USAGE)
    if why := packages.lacking("open"):
        raise NoAnswerError(why, ExitCode.USAGE)
    from entrypoint.cluster.kept_runs import LOOPBACK, KeptRunsServer

    path = meant(path)
    if not path.is_dir():
        raise NoAnswerError(lack(str(path)), ExitCode.USAGE)
    os.scandir(path).close()  # raises OSError if it cannot be read
    run = RunFiles(path)
    if run.journal.exists():
        run_list.check(run)
        if run_list.state_of(run)[0] == RUNNING and (own := _live(settings, path)):
            print(f"{path} has a head that lives: this is its page", file=sys.stderr)
            return _open_head(own, options)
    elif not run_list.find(path):
        below = f"No directory in it, down to {run_list.DEEPEST} folders, has one either"
        raise NoAnswerError(f"{lack(str(path))}. {below}", ExitCode.USAGE)
    try:
        server = KeptRunsServer(path, options.port)
    except OSError as error:
        sentence = f"--port {options.port}: {LOOPBACK} does not give it: {error.strerror}"
        raise NoAnswerError(sentence, ExitCode.USAGE) from None
    with server:
        _show(server.link, options)
        print("the page is there until Ctrl-C", file=sys.stderr)
        threading.Event().wait()
    return ExitCode.FINISHED


def _live(settings: Settings, path: Path) -> Settings | None:
    """Return the settings by which the head of this very run answers; None if it does not."""
    own = replace(settings, run_dir=path)
    with suppress(NoAnswerError, OSError):
        told = ask(own, "GET", "/v1/state")["run"].get("id")
        if told and told == (stored_json.json_object(RunFiles(path).run) or {}).get("run_id"):
            return own
    return None


def _show(link: str, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"url": link, "read_only": not options.control}), flush=True)
        return
    print(link, flush=True)
    if has_browser() and not options.no_browser:
        import webbrowser

        webbrowser.open(link)


def has_browser() -> bool:
    """Whether a person sits at this terminal, and at a screen that can show a browser."""
    screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return bool(screen) and sys.stdout.isatty()
