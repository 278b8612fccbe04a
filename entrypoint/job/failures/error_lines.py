"""Pure: which of the last lines of a program say why it has ended, by the forms of errors.

A program's errors have a form: the line that ends a traceback, the name of an exception, a level or
a program's name at the beginning, a text of the C library. The last line may be only what follows
one, such as `Compile with TORCH_USE_CUDA_DSA …`. So the newest error counts until a line of the
training follows it.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass, field

from contract.launch.log_lines import ENDED_RANK
from entrypoint.job.failures.tracebacks import Line, Part

MOST_AFTER = 30
"""Lines that may follow an error, such as the table with which torchrun ends."""

FATAL_SIGNAL = "Fatal Python error: "
"""Begins the line before the stack that `faulthandler` writes."""
_ERRNOS = "|".join(sorted({re.escape(os.strerror(one)) for one in errno.errorcode}))
OF_SYSTEM = re.compile(rf"\[Errno|(?i:{_ERRNOS})")
"""In an OSError that the system has made, or that repeats its words."""
_SIGNALS = "|".join(
    sorted({re.escape(text) for one in signal.valid_signals() if (text := signal.strsignal(one))})
)
_STAMP = r"\[?\d{4}-\d\d-\d\d[T ]\S+"
ERRORS = re.compile(
    "|".join(
        (
            # an exception's name: `torch.OutOfMemoryError: …`, `KeyboardInterrupt`
            r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure)(?::|$)",
            rf"^{FATAL_SIGNAL}",
            r"^(?:ERROR|CRITICAL|FATAL) \d\d-\d\d \d\d:",  # vLLM's logger
            # a level, behind a program or a file: `train.py: error: …`, `t.c:1:19: error: …`
            r"^(?:\S+: ){0,3}\W{0,2}(?i:fatal|error|critical|panic|fatal error)\b(?:[:\]!]| is )",
            rf"^{_STAMP} .{{0,80}}?\b(?:ERROR|CRITICAL|FATAL)\b",
            r"^[EF]\d{4} \d\d:",  # glog
            # a program's name, and an error of the system or of a shell
            rf"^\S+: .*(?:{_ERRNOS})[.)]?$",
            r"^(?:\S*sh|\S*awk): (?:line )?\d+: ",
            r"^\S+: \*\*\* ",
            r"^curl: \(\d+\) ",
            rf"^(?:{_SIGNALS})(?: \(core dumped\))?$",
            # C, C++, Rust, Perl
            r"Assertion .+ failed",
            r"^terminate called ",
            r"^(?:free|malloc|realloc|munmap_chunk)\w*\(\): ",
            r"^\*\*\* .+ \*\*\*",
            r"^thread '.*' panicked at ",
            r" at \S+ line \d+\.$",
            # this product's launch of ranks
            ENDED_RANK.pattern,
        )
    )
)
OF_PEERS = re.compile(
    r"(?i)nccl|gloo|collective|process ?group|barrier|\bpeer|connect|socket|time(?:d ?)? ?out|store"
)
"""In an error that a rank has because another one has ended, or the network between them."""
OF_OTHERS = re.compile(
    OF_PEERS.pattern
    + r"|\bserver|\bservice|https?\b|unavailable|unreachable|storage|\bdisk|\b(?:cuda|gpu|ray)\b"
)
"""In an error that the user's code raises for what it has met at a server or a machine."""
POINTS_ELSEWHERE = re.compile(
    r"(?i:\b(?:root cause|stack ?trace|traceback|logs?) above\b|stack trace for root cause)"
    r"|\bChildFailedError\b|CalledProcessError: .* returned non-zero exit status"
)
"""In an error of vLLM, torchrun or accelerate that is about the error of another process."""
TRAINING = re.compile(
    r"^\W*(?:step|epoch|iter\w*|batch|eval\w*|train\w*|loss|reward|acc\w*)\b.*\d"
    r"|\d+%\||\d+/\d+ \["  # a bar
    r"|^[{\[].*\d.*[}\]]$"
    r"|(?:[\w/]+\s*[=:]\s*-?\d[\d.e+-]*%?[,;|\s]+){1,}[\w/]+\s*[=:]\s*-?\d",
    re.IGNORECASE,
)
"""Lines of a training that goes on: a step, a bar, names with numbers."""
WORDS = re.compile(
    r"exception|interrupt|fatal|fail|abort|panic|denied|cannot|can't|could ?n[o']t|unable"
    r"|\bno such|not (?:a |an )?(?:found|allowed|permitted|supported|valid|enough)|missing|refus"
    r"|invalid|illegal|unknown|unexpected|unrecogni[sz]ed|unsupported|killed|error"
    r"|usage:|timed? ?out|exceed|out of |overflow|corrupt|broken|is gone|no longer|required",
    re.IGNORECASE,
)
NONE = re.compile(r"\b(?:no|0|zero|without) (?:\w+ )?(?:errors?|failures?|failed)\b", re.IGNORECASE)
"""`0 failed samples`."""


def may_be_error(line: str) -> bool:
    """Return whether a last line without the form of an error is one by its words."""
    return bool(WORDS.search(line)) and not TRAINING.search(line) and not NONE.search(line)


def points_elsewhere(error: str) -> bool:
    """Return whether an error says no more than that another process has failed."""
    return bool(POINTS_ELSEWHERE.search(error))


@dataclass(slots=True)
class ErrorLines:
    """Reads a program's lines in their order; `newest` is its newest error, or ""."""

    newest: str = ""
    place: str = ""
    """`path:line` in the user's own code of that error; "" if it is not known."""
    is_raised_there: bool = False
    """The line of that place itself has made the exception."""
    step: int = 0
    """The steps that had finished when it was printed; its reader sets them."""
    _after: int = field(default=0, init=False)
    """Lines since that error."""

    def read(self, said: Line, *, mild: bool = False) -> bool:
        """Return whether this line is the newest error.

        `mild`: a warning, or a log line without an error.
        """
        line = said.text
        if said.part is Part.DUMP and self.newest.startswith(FATAL_SIGNAL):
            self.place = said.place
        if not line.strip() or line[0].isspace() or said.part is Part.BEGIN:
            return False
        if not mild and (said.part is Part.ERROR or ERRORS.search(line)):
            self._after = 0
            if self.newest and points_elsewhere(line):
                return False
            self.newest, self.place, self.is_raised_there = line, said.place, said.is_raised_there
            return True
        if self.newest:
            self._after += 1
            if self._after > MOST_AFTER or TRAINING.search(line):
                self.newest = self.place = ""
        return False
