"""The object store of ROLLCALL_STORAGE: the files of one run below one URL, through fsspec.

fsspec and the package of a scheme (s3fs for s3://) are imported when a store is used. Credentials
come from the scheme's own variables, such as AWS_ACCESS_KEY_ID; no message shows them. `Patience`
asks a store until it answers; `Transfers` moves several files at once.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from contract.background import in_background
from contract.manifest import CHECKPOINT_NAME, LEFT, MANIFEST
from entrypoint.config.parsers import KNOWN_STORES, STORES
from entrypoint.net import wait

T = TypeVar("T")

PART_BYTES = 64 << 20
"""Of an upload. S3 allows 10,000 parts, so a file may have 640 GB."""
PROBE = ".rollcall-probe"
CHECKPOINTS = "checkpoints"
DIRECTORIES = (CHECKPOINTS, "hf", "hf_critic", "best")
"""All directories of a run in the store."""
S3_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 2}}
"""In seconds. botocore's own wait a minute for a connection, and fsspec tries five times."""
NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class StoreError(Exception):
    """The store does not answer; another try may succeed. The sentence says why."""


class UnusableStoreError(StoreError):
    """The store cannot be used as it is: no package, no bucket, no rights."""


class Store:
    """The files below `url`. Every method raises StoreError."""

    def __init__(self, url: str) -> None:
        """Raises UnusableStoreError if the scheme's package is missing. Connects to nothing."""
        self.url = url
        scheme = urlsplit(url).scheme
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if STORES.get(scheme) == "s3fs":
            options["config_kwargs"] = S3_TIMEOUTS
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(url, **options)
        except ImportError:
            package = STORES.get(scheme, "fsspec and the package of this scheme")
            raise UnusableStoreError(
                f"{scheme}:// needs a Python package that is not installed: install {package}"
            ) from None
        except ValueError:
            raise UnusableStoreError(f"fsspec knows no {scheme}://: give {KNOWN_STORES}") from None

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""
        with self._told():
            try:
                content: bytes = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
        return content

    def write(self, name: str, content: bytes) -> None:
        with self._told():
            self._make_parent(name)
            self._fs.pipe_file(self._path(name), content)

    def upload(self, name: str, file: Readable) -> None:
        """Write all that `file` still has, in parts. A part is sent before the next one is read.

        After an error the store has what it had before: no shorter file, and no parts of one.
        """
        with self._told():
            self._make_parent(name)
            target = self._fs.open(self._path(name), "wb", block_size=PART_BYTES)
            try:
                shutil.copyfileobj(file, target, PART_BYTES)
                target.close()
            except BaseException:
                _discard(target)
                raise

    def size(self, name: str) -> int | None:
        """Return a file's bytes; None if it is not there."""
        with self._told():
            try:
                return int(self._fs.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def sizes(self, directory: str) -> dict[str, int]:
        """Return the bytes of all files below `directory`, by their names relative to it."""
        below = self._path(directory)
        with self._told():
            self._fs.invalidate_cache()
            found = self._fs.find(below, detail=True)
        return {path.removeprefix(below).lstrip("/"): row["size"] for path, row in found.items()}

    def part(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file, or what it has of them."""
        with self._told():
            content: bytes = self._fs.cat_file(self._path(name), start=start, end=start + size)
        return content

    def abort_uploads(self) -> None:
        """Delete the parts that a killed head uploaded of files. S3 lists them nowhere else."""
        if STORES.get(urlsplit(self.url).scheme) != "s3fs":
            return
        bucket, _, prefix = self._root.partition("/")
        with self._told():
            for directory in DIRECTORIES:
                below = f"{prefix}/{directory}/".lstrip("/")
                found = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=below)
                for upload in found.get("Uploads", []):
                    self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def checkpoints(self) -> dict[int, bool]:
        """Return the steps whose checkpoints are there → whether each has its manifest."""
        found: dict[int, bool] = {}
        for name in self._names(CHECKPOINTS):
            directory, _, file = name.partition("/")
            if match := CHECKPOINT_NAME.fullmatch(directory):
                step = int(match[1])
                found[step] = found.get(step, False) or file == MANIFEST
        return found

    def delete(self, step: int) -> None:
        """Delete a checkpoint. Its manifest goes first, so that none is half there."""
        directory = checkpoint_name(step)
        with self._told():
            for name in (f"{directory}/{MANIFEST}", directory):
                if self._fs.exists(self._path(name)):
                    self._fs.rm(self._path(name), recursive=True)

    def leave(self, step: int) -> None:
        """Mark a checkpoint that is later than the step that --load_step resumes from."""
        directory = checkpoint_name(step)
        if manifest := self.read(f"{directory}/{MANIFEST}"):
            self.write(f"{directory}/{LEFT}", manifest)
            self.remove(f"{directory}/{MANIFEST}")

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._told():
            if self._fs.exists(self._path(name)):
                self._fs.rm(self._path(name))

    def probe(self) -> None:
        """Write, read and delete a small file, as an upload does."""
        self.write(PROBE, b"probe")
        if self.read(PROBE) != b"probe":
            raise StoreError("it does not return what was written")
        self.remove(PROBE)

    def _names(self, directory: str) -> list[str]:
        """Return the names of all files below `directory`, relative to it."""
        return list(self.sizes(directory))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_parent(self, name: str) -> None:
        """Make the directories, if the store has any. It never makes a bucket."""
        if "file" in self._fs.protocol:
            self._fs.makedirs(self._fs._parent(self._path(name)), exist_ok=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn any error of the store into a StoreError with a sentence."""
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise UnusableStoreError(f"there is no such bucket ({_cause(error)})") from None
        except PermissionError as error:
            raise UnusableStoreError(f"it does not allow this ({_cause(error)})") from None
        except Exception as error:  # every scheme has errors of its own
            if type(error).__name__ in NO_CREDENTIALS:
                raise UnusableStoreError(f"it has no credentials ({_cause(error)})") from None
            raise StoreError(_cause(error)) from None


def checkpoint_name(step: int) -> str:
    return f"{CHECKPOINTS}/global_step_{step}"


def _discard(target: Any) -> None:
    """Abort the upload. fsspec's `close`, and its `__del__`, would complete what is there."""
    with suppress(Exception):
        target.discard()
    with suppress(AttributeError):  # a local file has no setter
        target.closed = True


def _cause(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store may give no answer, and what ends the wait earlier."""

    seconds: float
    stop: Event

    def ask(self, store: Store, question: Callable[[], T]) -> T:
        """Return the store's answer to `question`, which is asked again after a StoreError.

        Raises StoreError if there is no answer for `seconds`, UnusableStoreError at once,
        InterruptedWaitError if `stop` is set.
        """

        def probe() -> T:
            try:
                return question()
            except UnusableStoreError as error:
                raise UnusableStoreError(f"{store.url} cannot be used: {error}") from None
            except StoreError as error:
                raise wait.NotYetError(str(error)) from None

        what = f"{store.url} to answer"
        if self.stop.is_set():
            raise wait.InterruptedWaitError(f"asked to stop while waiting for {what}")
        try:
            return wait.until(what, probe, timeout=self.seconds, stop=self.stop)
        except wait.GaveUpError as error:
            raise StoreError(str(error)) from None


class Transfers:
    """Makes the calls in order, several at once. After an error no further call begins.

    Its threads are daemons: a silent store delays nobody's exit.
    """

    def __init__(
        self, name: str, calls: Iterable[Callable[[], None]], at_once: int, over: Event
    ) -> None:
        """`over`: begin no further call once it is set. An error sets it, too."""
        self._over = over
        self._calls = deque(calls)
        count = min(at_once, len(self._calls))
        self._threads = [in_background(name, self._work) for _ in range(count)]

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call()
            except BaseException:
                self._over.set()
                raise

    def ended(self, seconds: float | None = None) -> bool:
        """Wait until all threads have ended, and return whether they have.

        Raises the error of a call, once all threads have ended.
        """
        ended, running = futures.wait(self._threads, seconds)
        if running:
            return False
        for thread in ended:
            thread.result()
        return True
