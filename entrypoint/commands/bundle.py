"""`rollcall bundle RUN`: one archive for a bug report, without secrets.

Has the run's journal, result and facts, the ends of its logs and metrics, the reports of preflight,
this node's settings and versions. Checkpoints, models and samples are not in it.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.journal import timestamp
from contract.options import ConfigError
from contract.redaction import MASK, SECRET_NAME, redact
from contract.run_dir import RunFiles, name_of
from entrypoint.commands import found_secrets
from entrypoint.commands.arguments import Parser, fail, version
from entrypoint.commands.found_run import run_of
from entrypoint.commands.named_run import lack, meant
from entrypoint.commands.node_shell import UnnamedRunError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings, declared, variable_names
from entrypoint.config.uses import Use
from entrypoint.machine.inventory import COLLECTIVE_PREFIXES, versions
from entrypoint.run import bundle, errors
from entrypoint.run.bundle import Gathered, Member

ENDINGS = (".tar.gz", ".tgz")
SHOWN = ("CUDA_", "HF_", "HIP_", "RAY_", "ROCR_", "ROLLCALL_", "VLLM_", *COLLECTIVE_PREFIXES)
"""How the names of other variables begin that are in the bundle beside those of settings."""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse(arguments)
    try:
        run = RunFiles(meant(options.run) if options.run else run_of(os.environ))
    except UnnamedRunError as error:
        return fail(str(error), ExitCode.USAGE, as_json=options.json)
    name = f"rollcall-{name_of(run.root.resolve())}"
    out = options.out or Path(f"{name}.tar.gz")
    try:
        is_run = run.journal.is_file() or run.run.is_file()
    except OSError as error:
        return fail(errors.describe(error), ExitCode.RUN_DIR, as_json=options.json)
    if not is_run:
        return fail(lack(str(run.root)), ExitCode.USAGE, as_json=options.json)
    if not out.name.endswith(ENDINGS):
        sentence = f"--out {out} has another ending: give a name that ends in .tar.gz"
        return fail(sentence, ExitCode.USAGE, as_json=options.json)
    environ = dict(os.environ)
    found = bundle.without_secrets(
        _with_node(bundle.gather(run), environ), found_secrets.of(run, environ)
    )
    try:
        size = _write(out, name, found)
    except FileExistsError:
        sentence = f"{out} exists already, and nothing is overwritten: give another name"
        return fail(sentence, ExitCode.USAGE, as_json=options.json)
    except OSError as error:
        makes = f"make the directory {out.parent}, or give another --out"
        what = errors.remedy(error) if out.parent.is_dir() else makes
        sentence = ": ".join(filter(None, (str(out), error.strerror, what)))
        return fail(sentence, ExitCode.RUN_DIR, as_json=options.json)
    rows = [{"name": m.name, "bytes": len(m.text.encode()), "note": m.note} for m in found.members]
    if options.json:
        left_out = [asdict(one) for one in found.left_out]
        row = {"file": str(out), "bytes": size, "members": rows, "left_out": left_out}
        print(json.dumps(row))
        return ExitCode.FINISHED
    for row in rows:
        print(f"{row['bytes']:>10}  {row['name']}" + (f" ({row['note']})" if row["note"] else ""))
    for one in found.left_out:
        print(f"  left out  {one.name}: {one.why}")
    print(f"{out} has {size} bytes. Known secrets are masked; look through it before you send it.")
    return ExitCode.FINISHED


def parser() -> Parser:
    made = Parser("bundle", __doc__)
    add = made.add_argument
    what = "its ROLLCALL_RUN_DIR, or RUN/jobs/ID of a job; none: as for other commands"
    add("run", type=Path, nargs="?", metavar="RUN", help=what)
    add("--out", type=Path, metavar="FILE", help="the archive: a new .tar.gz (default: here)")
    add("--json", action="store_true", help="one JSON object")
    return made


def _with_node(found: Gathered, environ: Mapping[str, str]) -> Gathered:
    """Return the files with those that tell of this node in front of them."""
    try:
        settings: Settings | None = read_settings(environ, use=Use.MACHINE)
        faults: list[str] = []
    except ConfigError as error:
        settings, faults = None, [str(fault) for fault in error.faults]
    about = {
        "created": timestamp(),
        "versions": versions(settings) if settings else {"rollcall": version()},
        "system": {"kernel": platform.platform(), "machine": platform.machine()},
        "settings": _variables(environ),
        "faults": faults,
        "left_out": [asdict(one) for one in found.left_out],
    }
    return Gathered((Member("node.json", json.dumps(about)), *found.members), found.left_out)


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may matter, secrets masked by their names."""
    abouts = [variable.about for variable in declared().values()]
    secret = {name for about in abouts if about.secret for name in about.names}
    known = variable_names()
    chosen = sorted(name for name in environ if name in known or name.startswith(SHOWN))
    return {
        name: MASK if name in secret or SECRET_NAME.search(name) else redact(environ[name])
        for name in chosen
    }


def _write(out: Path, folder: str, found: Gathered) -> int:
    """Write the archive and return its bytes. Raises FileExistsError, OSError."""
    with out.open("xb") as file:
        try:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                for member in found.members:
                    content = member.text.encode()
                    info = tarfile.TarInfo(f"{folder}/{member.name}")
                    info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
                    archive.addfile(info, io.BytesIO(content))
            return file.tell()
        except BaseException:
            out.unlink(missing_ok=True)
            raise
