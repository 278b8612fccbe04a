"""Prints the commands that a shell script runs, as JSON, and runs none of them.

    python -m trainer.config.translate.script_commands SECONDS run.sh ARGUMENT …
    python -m trainer.config.translate.script_commands SECONDS -c 'cd /verl && python3 …' NAME …

The script starts with this process's environment, in its directory; SECONDS of the epoch are what
`date` says. What it asks the machine (`hostname`, `[ -f FILE ]`) is answered. A null in the JSON
stands for what only a run of the script tells.

- `commands`: the `words` of each, its `directory`, in `exported` the variables that it gets
  otherwise than the script, in `unset` those that are not set where its words need them, with the
  line, in `away` the programs of `$(…)` in its words that this machine has not, with the line
- `unknown`: what only a run tells → why
- `written`: files into which the script redirects; `absent`: files that it sources and that are not
  there → the line
- `notes`: sentences on lines that bash reads otherwise than their writer meant
- `ended`: the line at which the script ends before its end, else 0; `unbound`: the variable that is
  not set, if that ends it; `sets_up`: it reads a file of the machine, which may set that variable
- `away`: programs of which it takes the answer and that this machine has not, with the line
- `fails`: the script is sure to end so, with an error; `last_words`: what it says before
- `error`, alone: why the script cannot be read
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config.translate.bash.open_text import is_open
from trainer.config.translate.bash.scope import AWAY
from trainer.config.translate.bash.syntax import BYTES
from trainer.config.translate.shell import Place, Script, ScriptSyntaxError, read_whole

TEXT = "-c"


def main(argv: Sequence[str]) -> int:
    try:
        print(json.dumps(_row(_read(argv))))
    except (ScriptSyntaxError, OSError, UnicodeDecodeError) as error:
        print(json.dumps({"error": getattr(error, "strerror", None) or str(error)}))
    return 0


def _read(argv: Sequence[str]) -> Script:
    """Read the script. Raises ScriptSyntaxError, OSError and UnicodeDecodeError."""
    began, argv = float(argv[0]), argv[1:]
    if argv[0] == TEXT:
        text, script, arguments = argv[1], next(iter(argv[2:3]), "bash"), argv[3:]
    else:
        text, script, arguments = Path(argv[0]).read_text(errors=BYTES), argv[0], argv[1:]
    return read_whole(text, os.environ, arguments, Place(script, began=began))


def _row(read: Script) -> dict[str, Any]:
    return {
        "commands": [
            {
                "words": [_known(word) for word in words],
                "directory": _known(directory) if isinstance(directory, str) else None,
                "exported": {name: _known(value) for name, value in exported.items()},
                "unset": {name: at for name, at in lacks.items() if not name.startswith(AWAY)},
                "away": {
                    name.removeprefix(AWAY): at
                    for name, at in lacks.items()
                    if name.startswith(AWAY)
                },
            }
            for words, directory, exported, lacks in zip(
                read.commands, read.directories, read.environments, read.lacking, strict=True
            )
        ],
        "unknown": {name: why.sentence for name, why in read.asked.items()},
        "ended": read.ended,
        "unbound": read.unbound,
        "written": [_known(file) for file in read.written],
        "absent": dict(read.absent),
        "notes": list(read.notes),
        "sets_up": read.sets_up,
        "away": list(read.away),
        "fails": read.fails,
        "last_words": read.last_words,
    }


def _known(text: str) -> str | None:
    return None if is_open(text) else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
