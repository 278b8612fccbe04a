"""The process in which the peers' own functions run, and calls of them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OPENRLHF = HERE.parent.parent / ".oracles"


class Peers:
    """Calls of the functions in `peers/`; one after the other."""

    def __init__(self) -> None:
        if not OPENRLHF.is_dir():
            raise FileNotFoundError(f"{OPENRLHF} is missing; `make setup` installs it")
        self._process = started()

    def openrlhf(self, function: str, **arguments: Any) -> Any:
        return self._call("openrlhf_calls", function, arguments)

    def verl(self, function: str, **arguments: Any) -> Any:
        return self._call("verl_calls", function, arguments)

    def trl(self, function: str, **arguments: Any) -> Any:
        return self._call("trl_calls", function, arguments)

    def _call(self, module: str, function: str, arguments: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((module, function, arguments), self._process.stdin)
            self._process.stdin.flush()
            result, error = pickle.load(self._process.stdout)
        except BaseException:
            # As a test's timeout does it. The answer would else be taken for that of the next call.
            self._process.kill()
            self._process.communicate()
            self._process = started()
            raise
        if error is not None:
            raise RuntimeError(f"{module}.{function} failed:\n{error}")
        return result

    def close(self) -> None:
        """End the process; it ends by itself where its input does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, HERE / "peers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ
        | {
            "PYTHONPATH": str(OPENRLHF),
            "TORCHDYNAMO_DISABLE": "1",  # OpenRLHF compiles its entropy: minutes for one test
            "ACCELERATE_USE_CPU": "true",
        },
    )
