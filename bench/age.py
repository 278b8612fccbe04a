"""What a run's age costs: its next start, and `report`, with a million steps behind it.

A run with a million steps in metrics.jsonl (about 1 GB) and 200,000 lines in its journal is made on
disk, and one of a minute. Of each, a start reads in a process of its own what a head, an attempt
and a trainer read of a run before its next step. The difference in time and in memory counts, with
and without the index that the run has made of its journal. Then `report` reads the old run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.result import report
from contract.journal_file.lines import line_of
from contract.run_dir import RunFiles
from entrypoint.run.lease import Lease

STEPS = 1_000_000
JOURNAL_LINES = 200_000
YOUNG_STEPS = 20
MOST_SECONDS, MOST_BYTES, REPORT_SECONDS = 1.0, 100e6, 5.0
COMMON = {"node": "head", "epoch": 1, "attempt": 1}

START = """
import json, resource, sys, time
from pathlib import Path
from contract.journal import newest_finished
from contract.run_dir import RunFiles
from entrypoint.job.failures import resume_check
from entrypoint.run.flight_record import run_end
from entrypoint.run.journal import Journal
from entrypoint.run.lease import Lease
from trainer.checkpoint.replication import may_be_held
from trainer.checkpoint.resume import _is_told
from contract.metrics.json_lines import JsonLines

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

run, step = RunFiles(Path(sys.argv[1])), int(sys.argv[2])
memory, began = peak(), time.perf_counter()
with Lease(run.leases, lambda why: None) as lease:
    journal = Journal(run.journal, "head", lease.claim)
    list(journal.landmarks("outcome"))
    journal.record("start", "this is the head", incarnation=lease.incarnation)
    resume_check.has_begun(journal.landmarks("attempt", "resume"), "f00d")
    journal.attempt = journal.attempts() + 1
    journal.record("attempt", f"attempt {journal.attempt} starts", resume_from=step)
    assert newest_finished(run.journal) == step
    assert may_be_held(run) and _is_told(run.journal, step, "step", "step-found")
    JsonLines(run.metrics, step)
    JsonLines(run.samples, step)
    assert run_end.read(run) is None
    assert len(journal.of_attempt()) == 0
print(json.dumps({"seconds": time.perf_counter() - began, "bytes": peak() - memory}))
"""


def write(run: RunFiles, steps: int, events: int) -> None:
    """Write a run of so many steps, with so many events in its journal."""
    run.root.mkdir()
    with Lease(run.leases, lambda why: None):
        pass  # an earlier head has had it, and has given it back
    names = [f"train/a_metric_of_the_run_{n}" for n in range(17)]
    with run.metrics.open("w") as file:
        for step in range(1, steps + 1):
            row = {"step": step, "at": 1.8e9 + step, "train/reward": step / steps}
            row |= {name: 1 / (step + n) for n, name in enumerate(names)}
            file.write(json.dumps(row) + "\n")
            if step % 1000 == 0:
                held = {"step": step, "at": 1.8e9 + step, "eval/accuracy": step / steps}
                file.write(json.dumps(held) + "\n")
    with run.journal.open("wb") as lines:
        for number, (kind, details) in enumerate(_events(steps, events)):
            at = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(1.8e9 + 10 * number))
            event = {"at": at, **COMMON, "kind": kind, "sentence": f"{kind}: {details}"}
            lines.write(line_of({**event, "details": details}) + b"\n")


def _events(steps: int, count: int) -> list[tuple[str, dict[str, object]]]:
    made: list[tuple[str, dict[str, object]]] = [
        ("start", {"incarnation": "a"}),
        ("attempt", {"resume_from": 0, "command": "f00d"}),
        ("resume", {"step": 0}),
    ]
    each = max(1, steps // count)
    told = {"steps": each, "reward": 0.5, "tokens": 123_456}
    return made + [("step", {"step": step, **told}) for step in range(each, steps + 1, each)]


def start(run: RunFiles, steps: int) -> dict[str, float]:
    """Return what a start takes: `seconds`, and `bytes` of memory."""
    words = [sys.executable, "-c", START, str(run.root), str(steps)]
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        old, young = RunFiles(Path(directory) / "old"), RunFiles(Path(directory) / "young")
        write(young, YOUNG_STEPS, YOUNG_STEPS)
        write(old, STEPS, JOURNAL_LINES)
        first, base = start(old, STEPS), start(young, YOUNG_STEPS)
        indexed = start(old, STEPS)
        began = time.perf_counter()
        words = [sys.executable, "-m", "entrypoint", "report", str(old.root)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        reported = time.perf_counter() - began
        size = old.metrics.stat().st_size
    worst = max(first["seconds"], indexed["seconds"]) - base["seconds"]
    memory = max(first["bytes"], indexed["bytes"]) - base["bytes"]
    detail = {
        "metrics_gb": round(size / 1e9, 3),
        "young_seconds": round(base["seconds"], 3),
        "without_index_seconds": round(first["seconds"], 3),
        "with_index_seconds": round(indexed["seconds"], 3),
        "more_mb": round(memory / 1e6, 1),
        "report_seconds": round(reported, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    besides = memory <= MOST_BYTES and reported <= REPORT_SECONDS
    reached = report(
        *("age", worst),
        unit="s more at a start",
        target=MOST_SECONDS,
        better="lower",
        detail=detail,
        besides=besides,
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
