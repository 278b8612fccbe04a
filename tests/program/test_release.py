"""What publishes the package and the image, as far as that needs no credential."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from release import provenance
from tests.support.repository import ROOT

PYTHON = ROOT / ".release/bin/python"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
INVENTORY = "os\tdebian\t12\ndeb\tlibc6\t2.36-9\npypi\tray\t2.55.0\npypi\tray\t2.55.0\n"

needs_release = pytest.mark.skipif(
    not (ROOT / ".release/.done").exists(), reason="needs make .release/.done"
)


def run(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables}
    return subprocess.run([ROOT / script, *words], env=environ, capture_output=True, text=True)


def sbom(inventory: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [PYTHON, ROOT / "release/sbom.py", "team/rollcall:cuda"]
    return subprocess.run(command, input=inventory, capture_output=True, text=True)


@needs_release
def test_the_sbom_of_an_image_has_each_package_once() -> None:
    """`release/sbom.py` itself holds it to the schema of CycloneDX."""
    done = sbom(INVENTORY)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["metadata"]["component"]["name"] == "team/rollcall:cuda"
    assert sorted(one["purl"] for one in made["components"]) == [
        "pkg:deb/debian/libc6@2.36-9",
        "pkg:generic/debian@12",
        "pkg:pypi/ray@2.55.0",
    ]


@needs_release
def test_an_inventory_that_lacks_a_kind_makes_no_sbom() -> None:
    done = sbom("os\tdebian\t12\npypi\tray\t2.55.0\n")
    assert done.returncode == 1
    assert "the inventory names no deb" in done.stderr


def test_an_image_that_has_no_name_is_refused() -> None:
    done = run("release/image.sh", DRY_RUN="1", ENGINE="sh")
    assert (done.returncode, "IMAGE is missing" in done.stderr) == (64, True)


def test_an_engine_or_a_signer_that_is_not_installed_is_named() -> None:
    done = run("release/image.sh", DRY_RUN="1", ENGINE="no-engine", IMAGE="x")
    assert (done.returncode, "no-engine is not installed" in done.stderr) == (64, True)
    done = run("release/image.sh", ENGINE="sh", IMAGE="x", PATH="/nowhere:/bin:/usr/bin")
    assert (done.returncode, "cosign is not installed" in done.stderr) == (64, True)


BASES = "FROM ${BASE_IMAGE:-debian:bookworm-slim} AS a\nFROM ${CUDA_BUILD_IMAGE:-team/b:1.0} AS b\n"
REGISTRY = """#!/bin/sh
for word in "$@"; do name=$word; done
printf 'sha256:%s\\n' "$(printf %s "$name" | sha256sum | cut -c1-64)"
"""


def digest(name: str) -> str:
    return f"{name}@sha256:{hashlib.sha256(f'docker://{name}'.encode()).hexdigest()}"


def test_bases_get_the_digests_of_their_tags_and_other_ones_the_next_time(tmp_path: Path) -> None:
    (file := tmp_path / "Dockerfile").write_text(BASES)
    (tmp_path / "skopeo").write_text(REGISTRY)
    (tmp_path / "skopeo").chmod(0o755)
    given = {"DOCKERFILE": str(file), "ENGINE": "podman"}
    given["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    lacking = run("release/bases.sh", "--check", **given)
    assert (lacking.returncode, "debian:bookworm-slim team/b:1.0" in lacking.stderr) == (1, True)
    pinned = BASES
    for name in ("debian:bookworm-slim", "team/b:1.0"):
        pinned = pinned.replace(name, digest(name))
    file.write_text(BASES.replace("team/b:1.0", f"team/b:1.0@sha256:{'0' * 64}"))
    assert run("release/bases.sh", **given).returncode == 0
    assert file.read_text() == pinned
    assert run("release/bases.sh", "--check", **given).returncode == 0


def test_an_image_of_bases_without_digests_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(BASES)
    for name in ("cosign", "engine", "git"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    given = {"DOCKERFILE": str(tmp_path / "Dockerfile"), "IMAGE": "x", "ENGINE": "engine"}
    done = run("release/image.sh", **given, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, "bases without a digest" in done.stderr) == (64, True)


def test_a_provenance_has_the_command_the_commit_and_each_base_with_its_digest() -> None:
    base = digest("team/base:1")
    words = ["docker", "build", "--build-arg", "FLAVOUR=cpu", "--build-arg", f"BASE_IMAGE={base}"]
    made = provenance.provenance("team/rollcall:cpu", "c0ffee", words)["buildDefinition"]
    assert made["externalParameters"]["command"] == words
    source, *bases = made["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "c0ffee"}
    of_the_compiler = provenance.BASE.findall((ROOT / "Dockerfile").read_text())
    assert {one["uri"] for one in bases} == {
        "team/base:1",
        *(name for argument, name, _ in of_the_compiler if argument != "BASE_IMAGE"),
    }
    (given,) = (one for one in bases if one["uri"] == "team/base:1")
    assert given["digest"] == {"sha256": base.partition("@sha256:")[2]}


LOCK = f"ray==2.55.0 --hash=sha256:{'0' * 64}\nsafe==1.0 --hash=sha256:{'0' * 64}\n"
KNOWN = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2026-1"],
    "affected": [
        {
            "package": {"name": "ray", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9.0"}]}],
        }
    ],
}


class Database(BaseHTTPRequestHandler):
    """Answers as OSV's database: it knows one advisory, on Ray."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"vulns": [KNOWN]} if asked["package"]["name"] == "ray" else {}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Database)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    server.server_close()


ROW = '[[accepted]]\nid = "CVE-2026-1"\npackage = "ray"\nwhy = "{why}"\nuntil = {until}\n'
WHY = "Only its dashboard is concerned, which asks for the token."


@pytest.mark.parametrize(
    ("rows", "exit_code", "says"),
    [
        ("accepted = []", 1, "ray 2.55.0: CVE-2026-1 GHSA-aaaa-bbbb-cccc, fixed in 9.0 (a.lock)"),
        (ROW.format(why=WHY, until="9999-01-01"), 0, "1 locks, 1 advisories, 1 of them accepted"),
        (ROW.format(why=WHY, until="2026-01-01"), 1, "CVE-2026-1: accepted until 2026-01-01"),
        (ROW.format(why="", until="9999-01-01"), 1, "CVE-2026-1: `why` gives no reason"),
        (ROW.format(why=WHY, until="9999-01-01").replace("ray", "safe"), 1, "remove it"),
    ],
    ids=["found", "accepted", "no longer", "without a reason", "of another package"],
)
@needs_release
def test_an_advisory_on_a_lock_fails_the_audit_until_it_is_accepted_with_a_reason(
    rows: str, exit_code: int, says: str, database: str, tmp_path: Path
) -> None:
    done = audit(tmp_path, rows, database)
    assert (done.returncode, says in done.stdout) == (exit_code, True), done.stdout + done.stderr


@needs_release
def test_a_database_that_does_not_answer_is_no_pass(tmp_path: Path, free_port: int) -> None:
    done = audit(tmp_path, "accepted = []", f"http://127.0.0.1:{free_port}/v1/query")
    assert (done.returncode, "a.lock: not audited" in done.stderr) == (69, True)


def test_what_is_accepted_has_a_reason_and_a_day() -> None:
    rows = tomllib.loads((ROOT / "release/advisories.toml").read_text())["accepted"]
    assert [row for row in rows if len(row["why"]) < 20 or not isinstance(row["until"], date)] == []


def audit(root: Path, rows: str, database: str) -> subprocess.CompletedProcess[str]:
    (root / "advisories.toml").write_text(rows)
    (root / "a.lock").write_text(LOCK)
    environ = {"PATH": os.environ["PATH"], "HOME": str(root), "OSV_URL": database}
    environ["ADVISORIES"] = str(root / "advisories.toml")
    command = [PYTHON, ROOT / "release/audit.py", root / "a.lock"]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


@needs_release
@pytest.mark.slow
def test_a_dry_run_builds_the_package_and_its_sbom_and_signs_nothing(tmp_path: Path) -> None:
    done = run("release/package.sh", DRY_RUN="1", DIST=str(tmp_path))
    assert done.returncode == 0, done.stderr
    name = f"rollcall_rlhf-{VERSION}"
    listed = {path.name for path in tmp_path.iterdir()}
    assert listed == {f"{name}-py3-none-any.whl", f"{name}.tar.gz", f"{name}.cdx.json"}
    made = json.loads((tmp_path / f"{name}.cdx.json").read_text())
    root = made["metadata"]["component"]
    assert (root["name"], root["version"]) == ("rollcall-rlhf", VERSION)
    versions = {one["name"]: one["version"] for one in made["components"]}
    assert versions["ray"] == "2.55.0"
    assert versions["torch"] == "2.13.0"
