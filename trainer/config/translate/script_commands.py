"""Prints the commands that a shell script runs, as JSON, and runs nothing.

    python -m trainer.config.translate.script_commands run.sh ARGUMENT …
    python -m trainer.config.translate.script_commands -c 'cd /verl && python3 -m verl.…' NAME …

The script starts with this process's environment, in its directory. `commands` has the `words` of
each, its `directory`, and in `unset` each variable that is not set where the words need it, with
the line. `exported` has the variables that the script changes for them. A null stands
for what only a run of the script tells; `unknown` has the reasons. If the script cannot be read,
`error` says why instead. `ended` is the line at which it ends before its end, else 0; `unbound` is
the variable that is not set, if that ends it, else empty.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config.translate.bash.open_text import is_open
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
    if argv[0] == TEXT:
        text, place, arguments = argv[1], Place(next(iter(argv[2:3]), "bash")), argv[3:]
    else:
        text, place, arguments = Path(argv[0]).read_text(errors=BYTES), Place(argv[0]), argv[1:]
    return read_whole(text, os.environ, arguments, place)


def _row(read: Script) -> dict[str, Any]:
    return {
        "commands": [
            {
                "words": [_known(word) for word in words],
                "directory": _known(directory) if isinstance(directory, str) else None,
                "unset": dict(unset),
            }
            for words, directory, unset in zip(
                read.commands, read.directories, read.lacking, strict=True
            )
        ],
        "exported": {name: _known(value) for name, value in read.exported.items()},
        "unknown": dict(read.asked),
        "ended": read.ended,
        "unbound": read.unbound,
    }


def _known(text: str) -> str | None:
    return None if is_open(text) else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
