"""Build an index: passages, then words or vectors, then the manifest. A killed build continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from env.retrieval import bm25
from env.retrieval.encoder import EncoderSettings
from env.retrieval.files import (
    FAISS_INDEX,
    MANIFEST,
    IndexFault,
    Manifest,
    checksum,
    damaged_file,
    describe_files,
    only_builder,
    read_manifest,
    write_manifest,
)
from env.retrieval.passages import Passages, read_corpus, store

Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""What is done and of how many; gives a function that takes how many are done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    corpus: Sequence[Path]
    language: str = "english"
    """Of the words, for the kind bm25."""
    encoder: EncoderSettings | None = None
    """Given: the kind is dense."""
    faiss: str = "Flat"
    faiss_index: Path | None = None
    """A ready-made index of faiss, in place of vectors."""
    trust_remote_code: bool = False
    """Run code that the encoder's model brings along; the index does not keep it."""

    @property
    def kind(self) -> str:
        return "dense" if self.encoder else "bm25"

    @property
    def settings(self) -> Mapping[str, Any]:
        if self.encoder is None:
            return {"language": self.language}
        index = {"faiss_index": True} if self.faiss_index else {"faiss": self.faiss}
        return {"encoder": asdict(self.encoder), **index}


def build_index(plan: Plan, out: Path, progress: Progress, *, force: bool = False) -> bool:
    """Make the index, or what a killed build has left to do; False if it was whole already.

    Raises IndexFault, also if `out` holds an index of another corpus or of other settings.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with only_builder(out):
            _clear(out, everything=force)
            return _build(plan, out, progress)
    except OSError as error:
        where = error.filename or out
        raise IndexFault(f"{where}: {error.strerror or error}") from error


def _build(plan: Plan, out: Path, progress: Progress) -> bool:
    _check(plan)
    begun = _begun(plan, out)
    with progress("passages", None) as report:
        count, digest = store(read_corpus(plan.corpus), out / "passages", report)
    if begun and begun.complete:
        if damaged := damaged_file(out, begun):
            raise IndexFault(f"{out / damaged}: is damaged; make the index again with --force")
        return False
    passages = Passages(out / "passages")
    if plan.encoder is None:
        with progress("words", count) as report:
            bm25.build(out / "bm25", passages, plan.language, report)
    else:
        _build_dense(plan, plan.encoder, passages, out, progress)
    manifest = Manifest(
        kind=plan.kind,
        settings=plan.settings,
        corpus=digest,
        passages=count,
        files=describe_files(out),
        complete=True,
    )
    write_manifest(out, manifest)
    return True


def _build_dense(
    plan: Plan, settings: EncoderSettings, passages: Passages, out: Path, progress: Progress
) -> None:
    from env.retrieval import dense
    from env.retrieval.encoder import Encoder

    encoder = Encoder(settings, trust_remote_code=plan.trust_remote_code)
    index = out / FAISS_INDEX
    if plan.faiss_index:
        dense.adopt_faiss(plan.faiss_index, index, len(passages), encoder.width)
        return
    with progress("vectors", len(passages)) as report:
        dense.write_vectors(out / "vectors", passages, encoder, report)
    if plan.faiss != dense.FLAT:
        dense.write_faiss(index, out / "vectors", plan.faiss)
        shutil.rmtree(out / "vectors")


def _check(plan: Plan) -> None:
    """Raises IndexFault for what would end the build hours later."""
    if plan.encoder is None:
        bm25.analyzer(plan.language)
    elif plan.faiss_index is None:
        from env.retrieval import dense

        dense.check_factory(plan.faiss)


def _begun(plan: Plan, out: Path) -> Manifest | None:
    """The manifest of an earlier build with the same settings. Without one, write one."""
    if not (out / MANIFEST).exists():
        others = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
        if others:
            raise IndexFault(
                f"{out}: holds {', '.join(others[:3])} and no index; give an empty directory"
            )
        write_manifest(out, Manifest(kind=plan.kind, settings=plan.settings))
        return None
    begun = read_manifest(out)
    before, now = _identity(begun.kind, begun.settings), _identity(plan.kind, plan.settings)
    if before != now:
        names = sorted(name for name in before | now if before.get(name) != now.get(name))
        changes = [f"{name} {before.get(name)} (now {now.get(name)})" for name in names]
        raise IndexFault(
            f"{out}: was made with other arguments: {', '.join(changes)}; give another --out, or "
            "--force to make it again"
        )
    if plan.faiss_index and begun.complete:
        _check_same(plan.faiss_index, begun, out)
    return begun


def _check_same(given: Path, begun: Manifest, out: Path) -> None:
    """Raise IndexFault if another --faiss-index is given than `out` has a copy of.

    The one that was copied may be removed.
    """
    if given.exists() and checksum(given) != begun.files[FAISS_INDEX]["xxh3"]:
        raise IndexFault(
            f"{out}: was made with another --faiss-index than {given}; give another --out, or "
            "--force to make it again"
        )


def _identity(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without the model's place, which may change."""
    encoder = {k: v for k, v in settings.get("encoder", {}).items() if k != "model"}
    rest = {name: value for name, value in settings.items() if name != "encoder"}
    return {"kind": kind, **rest, **encoder}


def _clear(out: Path, *, everything: bool) -> None:
    """Remove what killed builds left unfinished; or all files of an index."""
    unfinished = ("passages/.*", "vectors/.*", ".faiss.index.*", f".{MANIFEST}.*")
    for pattern in unfinished:
        for path in out.glob(pattern):
            path.unlink()
    if everything and (out / MANIFEST).exists():
        (out / MANIFEST).unlink()
        (out / FAISS_INDEX).unlink(missing_ok=True)
        for name in ("passages", "bm25", "vectors"):
            shutil.rmtree(out / name, ignore_errors=True)
