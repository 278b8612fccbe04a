"""The files of a run directory, and how they are replaced."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from contract.files import umask
from contract.files.os_errors import replacing_path, with_path

JOB_ENTRY = "job.json"
"""File of a submitted job's run directory: its entry in the head's queue."""
USUAL = "run"
"""How a run's directory is called that names nothing: `demo-1/run`, or `run` in a project's."""


def name_of(root: Path) -> str:
    """Return the name of a run that was given none: its directory's, or the one's above `run`."""
    whole = root.absolute()
    return whole.parent.name or USUAL if whole.name == USUAL else whole.name


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Paths of the files of one run, below its run directory."""

    root: Path

    def has(self, file: object) -> bool:
        """Return whether the run itself writes this file or directory, or a parent of it."""
        lines = (self.journal, self.journal_index, self.metrics, self.samples, self.rank_times)
        state = (self.progress, self.phase, self.leases, self.peers, self.layouts, self.unfit)
        files = (self.run, self.result, self.heartbeat, self.origin, self.kept, self.checkpoints)
        own = (*lines, *state, *files)
        return isinstance(file, str) and any(Path(file).is_relative_to(path) for path in own)

    @property
    def is_there(self) -> bool:
        """Whether the directory is one of a run, by the marks that each run leaves in it."""
        began = self.run.exists() or self.logs.exists() or self.journal_index.exists()
        return self.leases.exists() or (self.journal.exists() and began)

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def journal_index(self) -> Path:
        """Has the events of the journal that a start reads."""
        return self.root / ".journal.index"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def rank_times(self) -> Path:
        """Has how long each rank computed in each step."""
        return self.root / "rank-times.jsonl"

    @property
    def progress(self) -> Path:
        return self.root / "progress.json"

    @property
    def phase(self) -> Path:
        return self.root / ".phase"

    @property
    def heartbeat(self) -> Path:
        """Is locked and renewed by a trainer that no head has started, while it lives."""
        return self.root / ".heartbeat"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def exported(self) -> Path:
        return self.root / "hf"

    def link_exported(self, model: Path) -> bool:
        """Make RUN/hf a link to the directory of a model, and return whether it is one now.

        What the job itself has written to RUN/hf stays. A path below the run directory is relative,
        so that the link outlives a move of that directory. Raises OSError.
        """
        place = self.exported
        if place.exists() and not place.is_symlink():
            return False
        fresh = place.with_name(f".{place.name}-link")
        fresh.unlink(missing_ok=True)
        below = model.is_relative_to(self.root)
        fresh.symlink_to(os.path.relpath(model, self.root) if below else model)
        fresh.replace(place)
        return True

    @property
    def exported_critic(self) -> Path:
        return self.root / "hf_critic"

    @property
    def best(self) -> Path:
        """Has the policy that was best on held-out prompts, in a directory of its step."""
        return self.root / "best"

    @property
    def jobs(self) -> Path:
        """The run directories of the jobs that were submitted to this cluster."""
        return self.root / "jobs"

    @property
    def packages(self) -> Path:
        """The working directories of submitted jobs, as archives."""
        return self.root / "packages"

    @property
    def token(self) -> Path:
        return self.root / ".token"

    @property
    def retired_tokens(self) -> Path:
        """Has what tells the tokens that were replaced, and when: no head takes them again."""
        return self.root / ".retired-tokens.json"

    @property
    def leases(self) -> Path:
        return self.root / ".leases"

    @property
    def unfit(self) -> Path:
        """Says why the last head did not start, if its checks failed."""
        return self.root / ".unfit"

    @property
    def layouts(self) -> Path:
        """Has the layouts that were chosen for the run's nodes."""
        return self.root / ".layouts"

    @property
    def peers(self) -> Path:
        """Has the identifier of this run's replicas in memory, for runs that reuse the path."""
        return self.root / ".peers"

    @property
    def origin(self) -> Path:
        """Says from where the run has begun: later checkpoints of other runs do not count."""
        return self.root / ".origin.json"

    @property
    def models(self) -> Path:
        """Has size and digest of the weights that the job names: a run goes on with no others."""
        return self.root / ".models.json"

    @property
    def servers(self) -> Path:
        """Names the servers that have answered the run: what they refuse later is an outage."""
        return self.root / ".servers.json"

    @property
    def trackers(self) -> Path:
        """Has the runs of the trackers, by which the next attempt goes on with them."""
        return self.root / ".trackers.json"

    @property
    def scratch(self) -> Path:
        """Holds files on their way between a node and the head's run directory."""
        return self.root / ".scratch"

    @property
    def kept(self) -> Path:
        """Replicas that nodes wrote when they ended; the next attempt resumes from them."""
        return self.root / ".kept"


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path`, so that readers see the old text or the new text, also after a crash.

    Raises OSError about `path` if the directory is missing, full or read-only; `path` is then
    unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    umask.restore()
    with replacing_path(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename inside `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with with_path(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
