"""Make this machine ready for tests with containers, Slurm and Prometheus: packages, images.

    python3 tests/container/host/prepare.py [--faults]

For root on Debian or Ubuntu; anywhere else it says that these tests will be skipped, and ends with
0. What is already there is left alone, so that a second run takes seconds. No container
registry is needed: the base image comes from the Debian mirror that apt is configured with, and
the builds see the certificates and the package sources of this machine's own pip.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]

PACKAGES = (
    "aardvark-dns",
    "buildah",
    "debootstrap",
    "fuse-overlayfs",
    "gcc",
    "iproute2",
    "iptables",
    "libc6-dev",
    "munge",
    "netavark",
    "podman",
    "prometheus",
    "runc",
    "slurm-client",
    "slurmctld",
    "slurmd",
    "tini",
)
BROWSER = ("chromium", "fonts-dejavu-core")
"""Ubuntu has no chromium in its archive: tests with a browser are skipped there."""
SUITE = "bookworm"
"""The Debian release whose Python, 3.11, the CPU lock is made for."""
BASE = f"localhost/base:{SUITE}"
IMAGES = {
    "localhost/rollcall:cpu": ("Dockerfile", "cpu"),
    "localhost/rollcall:other-ray": ("tests/container/host/Dockerfile.other-ray", None),
}
"""Tag → Dockerfile and FLAVOUR."""
OF_FAULTS = {"localhost/rollcall:rocm-layers": ("Dockerfile", "rocm")}
"""Images that only `make faults` needs."""


def main() -> int:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print("tests with containers and Slurm will be skipped: they need root on Debian or Ubuntu")
        return 0
    os.environ["CONTAINERS_CONF"] = str(HERE / "containers.conf")
    install_packages()
    make_base_image()
    images = IMAGES | OF_FAULTS if "--faults" in sys.argv[1:] else IMAGES
    with pip_mounts() as mounts:
        for image, (dockerfile, flavour) in images.items():
            build(image, dockerfile, flavour, mounts)
    return 0


def install_packages() -> None:
    missing = [name for name in (*PACKAGES, *BROWSER) if not is_installed(name)]
    if missing:
        with announced(f"installing {' '.join(missing)}"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run("apt-get", "update", env=environment)
            found = [name for name in missing if name != BROWSER[0] or is_in_archive(name)]
            run("apt-get", "install", "-y", "--no-install-recommends", *found, env=environment)


def is_in_archive(package: str) -> bool:
    shown = subprocess.run(["apt-cache", "show", "--no-all-versions", package], capture_output=True)
    return shown.returncode == 0


def is_installed(package: str) -> bool:
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True).stdout == "installed"


def make_base_image() -> None:
    if subprocess.run(["podman", "image", "exists", BASE]).returncode == 0:
        return
    with announced(f"making {BASE}"), tempfile.TemporaryDirectory() as directory:
        root = f"{directory}/root"
        include = "--include=ca-certificates"
        run("debootstrap", "--variant=minbase", include, SUITE, root, *debian_mirror())
        run("sh", "-c", 'tar -C "$0" -c . | podman import - "$1"', root, BASE)


def debian_mirror() -> list[str]:
    """The mirror of `SUITE` that apt is configured with; none where debootstrap's must do."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {SUITE}"]
    return subprocess.run(targets, capture_output=True, text=True).stdout.split()[:1]


@contextmanager
def pip_mounts() -> Iterator[list[str]]:
    """Options for `podman build` that let pip work inside as it is configured to work here."""
    listed = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    settings: dict[str, str] = {}
    for line in lines:  # files first, then variables: the later, the stronger
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = ast.literal_eval(value)
    words = [word for value in settings.values() for word in value.split()]
    paths = sorted({path for word in words if (path := local(word)) and path.exists()})
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("[global]\n")
        for name, value in settings.items():
            file.write(f"{name} = {value.replace(chr(10), chr(10) + '  ')}\n")
        file.flush()
        mounts = [f"--volume={path}:{path}:ro" for path in paths]
        yield [*mounts, f"--volume={file.name}:/etc/pip.conf:ro"]


def local(word: str) -> Path | None:
    """The file or directory that a word of pip's configuration means, where it means one."""
    if word.startswith("file://"):  # an index: its packages lie beside it
        return Path(word.removeprefix("file://")).parent
    return Path(word) if word.startswith("/") else None


def build(image: str, dockerfile: str, flavour: str | None, mounts: Sequence[str]) -> None:
    """Build `image`; layers whose inputs are unchanged come from podman's cache."""
    with announced(f"building {image}"):
        run(
            "podman",
            "build",
            "--quiet",
            "--format=docker",  # the other format has no HEALTHCHECK
            "--isolation=chroot",
            "--network=host",
            f"--build-arg=BASE_IMAGE={BASE}",
            f"--file={dockerfile}",
            *([f"--build-arg=FLAVOUR={flavour}"] if flavour else []),
            f"--tag={image}",
            *mounts,
            ".",
        )


@contextmanager
def announced(what: str) -> Iterator[None]:
    print(f"{what} …", flush=True)
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def run(*command: str, env: dict[str, str] | None = None) -> None:
    """Run `command`; its output is shown only where it fails, which ends this program."""
    result = subprocess.run(
        command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        sys.stdout.buffer.write(result.stdout)
        sys.exit(f"{command[0]} failed with exit code {result.returncode}")


if __name__ == "__main__":
    sys.exit(main())
