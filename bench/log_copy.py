"""What it costs to copy a job's log with its secrets masked: megabytes for a second of CPU time.

The log is of lines as a trainer prints them: steps, progress bars, paths, quoted commands, one line
in 200 with a secret. It comes in pieces as from a pipe. Then a job prints 500 MB and ends; how long
afterwards the copy is complete, and its last line told, while the reader of the lines takes 0.2 ms
for each, is in the detail.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.result import report
from contract.files.log_copy import Copy
from contract.redaction import MASK
from entrypoint.job import job_log

LEAST = 50.0
MEGABYTES, ROUNDS = 64, 3
LARGE_MEGABYTES = 500
KNOWN = frozenset({"9f86d081884c7d659a2feaa0c55ad015", "correct-horse-battery", "hf_" + "x" * 34})
LINES = (
    "(Trainer pid=1234, ip=10.0.0.7) Step {n} of 200000: reward 0.562, KL 0.0123, 1240 tokens/s\n",
    "2026-11-21 01:28:51 INFO worker.py:1843 -- Loading weights took {n} seconds, 7.51 GiB\n",
    "generate:  {n}%|####      | 12/128 [00:11<01:40,  1.16it/s, tokens=1234]\r",
    "  warnings.warn('the attention mask is not set and cannot be inferred from the input')\n",
    "/opt/venv/lib/python3.11/site-packages/vllm/engine/llm_engine.py:{n}: key metrics follow\n",
    'INFO:     127.0.0.1:51{n} - "POST http://10.0.0.9:8000/score HTTP/1.1" 200 OK\n',
)
SECRET_LINE = "started: python train.py --hf_token abcdef0123456789 --seed {n}\n"


def text(megabytes: int) -> bytes:
    made, size, number = [], 0, 0
    while size < megabytes * 1e6:
        number += 1
        line = SECRET_LINE if number % 200 == 0 else LINES[number % len(LINES)]
        made.append(line.format(n=number).encode())
        size += len(made[-1])
    return b"".join(made)


def copied(content: bytes, to: Path) -> float:
    """Return megabytes for a second of CPU time, as what else runs here changes it least."""
    copy, began = Copy(to, lambda text: None, KNOWN), time.thread_time()
    for at in range(0, len(content), job_log.CHUNK_BYTES):
        copy.take(content[at : at + job_log.CHUNK_BYTES])
    copy.close()
    return len(content) / (time.thread_time() - began) / 1e6


def after_the_end(content: bytes, root: Path) -> tuple[float, str]:
    """Return how long after a job's end its last line is told, in seconds, and that line."""
    source, told = root / "source", [""]
    source.write_bytes(content * (LARGE_MEGABYTES // MEGABYTES) + b"the end\n")

    def slow(line: str) -> None:
        time.sleep(0.0002)
        told[0] = line

    over, telling = threading.Event(), job_log.Telling(slow)
    over.set()
    began = time.perf_counter()
    job_log.follow(lambda: source, Copy(root / "copy", telling.put, KNOWN), over)
    telling.close()
    return time.perf_counter() - began, told[0]


def main() -> int:
    content = text(MEGABYTES)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        speeds = [copied(content, root / f"log-{n}") for n in range(ROUNDS)]
        masked = (root / "log-0").read_bytes()
        is_masked = b"abcdef0123456789" not in masked and masked.count(MASK.encode()) > 100
        seconds, last = after_the_end(content, root)
    detail = {
        "all_mb_per_second": [round(speed, 1) for speed in speeds],
        "seconds_after_the_end_of_500_mb": round(seconds, 1),
        "last_line": last,
        "masked": is_masked,
        "load": round(os.getloadavg()[0], 1),
    }
    reached = report(
        *("log_copy", max(speeds)),
        unit="MB per second of CPU time",
        target=LEAST,
        better="higher",
        detail=detail,
        besides=is_masked and last == "the end",
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
