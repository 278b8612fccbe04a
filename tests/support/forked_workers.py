"""Workers of xdist that are forked from one process, which has imported what most tests need.

The imports of torch and transformers take seconds of a CPU, and each worker would repeat them.
Without `install` xdist starts its workers as processes of their own.
"""

from __future__ import annotations

import atexit
import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

from execnet import gateway_io
from execnet.gateway_base import ExecModel, Popen2IO
from execnet.xspec import XSpec

from tests.support.fork_server import forking_python

FORKS = get_context("forkserver")
PRELOADED = [*forking_python.PRELOADED, "hypothesis", "uvicorn", "wandb"]
"""They start no thread that a fork would lose: numpy's library starts its own anew. Not `datasets`:
pyarrow starts one."""


def install() -> None:
    FORKS.set_forkserver_preload(PRELOADED)
    gateway_io.create_io = Forked


class Forked(gateway_io.Popen2IOMaster):
    """A worker's process and the two pipes through which execnet speaks with it."""

    def __init__(self, spec: XSpec, execmodel: ExecModel) -> None:
        assert spec.popen, spec
        stdin, to_worker = FORKS.Pipe(duplex=False)
        from_worker, stdout = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=work, args=(stdin, stdout))
        self.process.start()
        stdin.close()
        stdout.close()
        sending, receiving = os.dup(to_worker.fileno()), os.dup(from_worker.fileno())
        to_worker.close()
        from_worker.close()
        Popen2IO.__init__(self, os.fdopen(sending, "wb"), os.fdopen(receiving, "rb"), execmodel)

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def work(stdin: Connection, stdout: Connection) -> None:
    """Run what execnet sends, as `python -c` of execnet's own line does."""
    for pipe, number in ((stdin, 0), (stdout, 1)):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdin = os.fdopen(0, closefd=False)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    atexit._run_exitfuncs()  # a fork of multiprocessing leaves them out
