"""`rollcall bundle`: what is in the archive, and that no secret is."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.journal import append_event, read_events
from contract.run_dir import RunFiles
from entrypoint.__main__ import main
from entrypoint.commands import found_secrets
from entrypoint.run import bundle
from entrypoint.run import token as run_token

TOKEN = "correct-horse-battery-staple-1"
WANDB = "0123456789abcdef0123456789abcdef01234567"
OTHER_WANDB = "fedcba9876543210fedcba9876543210fedcba98"
HF = "hf_" + "Ab3" * 12
PASSWORD = "p4ss/w0rd\"with'quotes"
NAMED = "n4med-0nly-in-one-place"
SECRETS = {
    *(TOKEN, WANDB, OTHER_WANDB, HF, PASSWORD, NAMED),
    *(run_token.read_only(TOKEN), run_token.for_page(TOKEN)),
}

Rollcall = Callable[..., int]


@pytest.fixture
def rollcall(monkeypatch: pytest.MonkeyPatch) -> Rollcall:
    for name in os.environ:
        if name.startswith("ROLLCALL_"):
            monkeypatch.delenv(name)

    def call(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["rollcall", *words])
        try:
            return main()
        except SystemExit as ended:
            return int(ended.code or 0)

    return call


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    """A run with secrets in all kinds of files."""
    run = RunFiles(tmp_path / "low-rate")
    run.logs.mkdir(parents=True)
    run.token.write_text(TOKEN)
    run.run.write_text(json.dumps({"run_id": "r1", "command": ["--hf_token", HF, "--seed", "1"]}))
    run.result.write_text(json.dumps({"outcome": "failed", "exit_code": 70}))
    append_event(run.journal, "start", f"a head with {TOKEN}")
    append_event(run.journal, "attempt", "attempt 1 starts")
    append_event(run.journal, "failure", f"no {NAMED}, {HF}", {"failure": "usage", "said": WANDB})
    run.metrics.write_text('{"step": 1, "train/reward": 0.5}\n')
    run.samples.write_text('{"prompt": "a question of a user"}\n')
    (run.logs / "head.log").write_text(
        f"the page: http://h:8267/?read={run_token.read_only(TOKEN)}\n"
        f"env WANDB_API_KEY={OTHER_WANDB} python train.py --api_key {NAMED}\n"
    )
    (run.logs / "attempt-1.log").write_text(
        f"wandb: {WANDB} and {OTHER_WANDB}\nlogin {HF}\n{json.dumps({'said': PASSWORD})}\n{NAMED}\n"
    )
    (run.logs / "preflight-h.txt").write_text("PASS host.shm: 64 GiB\n")
    (run.logs / "to-the-outside.log").symlink_to("/etc/passwd")
    os.mkfifo(run.logs / "pipe.log")
    job = run.jobs / "job-1"
    (job / "logs").mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"runtime_env": {"env_vars": {"HF_TOKEN": HF}}}))
    (job / "logs" / "attempt-1.log").write_text(f"{WANDB}\n")
    (run.checkpoints / "global_step_1").mkdir(parents=True)
    (run.checkpoints / "global_step_1" / "weights").write_text("large")
    return run


def unpacked(archive: Path, to: Path) -> dict[str, str]:
    """Name in the archive, without its folder → content."""
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
        names = tar.getnames()
    assert {name.split("/")[0] for name in names} == {"rollcall-low-rate"}
    return {name.partition("/")[2]: (to / name).read_text() for name in names}


def test_the_archive_is_named_by_its_run_and_lies_here(
    run: RunFiles, rollcall: Rollcall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rollcall("bundle", str(run.root)) == 0
    assert (tmp_path / "rollcall-low-rate.tar.gz").is_file()


def test_no_planted_secret_is_in_any_member(
    run: RunFiles, rollcall: Rollcall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", WANDB)
    monkeypatch.setenv("MY_PASSWORD", PASSWORD)
    monkeypatch.setenv("ROLLCALL_JOB", f"--pretrain m --hf_token {HF}")
    monkeypatch.setenv("ROLLCALL_URL", f"http://user:{NAMED}@head:8267")
    out = tmp_path / "bundle.tar.gz"
    assert rollcall("bundle", str(run.root), "--out", str(out)) == 0
    members = unpacked(out, tmp_path / "unpacked")
    assert set(members) == {
        *("node.json", "run.json", "result.json", "journal.jsonl", "metrics.jsonl"),
        *("logs/head.log", "logs/attempt-1.log", "logs/preflight-h.txt"),
        *("jobs/job-1/job.json", "jobs/job-1/logs/attempt-1.log"),
    }
    for name, text in members.items():
        written = {secret for s in SECRETS for secret in (s, json.dumps(s)[1:-1])}
        assert [secret for secret in written if secret in text] == [], name
        assert "a question of a user" not in text
    settings = json.loads(members["node.json"])["settings"]
    assert settings["WANDB_API_KEY"] == "********"
    assert settings["ROLLCALL_JOB"] == "--pretrain m --hf_token ********"
    assert json.loads(members["node.json"])["versions"]["python"]
    assert json.loads(members["run.json"])["command"] == ["--hf_token", "********", "--seed", "1"]


def test_a_read_only_key_is_masked_though_its_token_is_nowhere_here(
    run: RunFiles, rollcall: Rollcall, tmp_path: Path
) -> None:
    """A token of ROLLCALL_TOKEN is in the nodes' environment alone."""
    run.token.unlink()
    out = tmp_path / "bundle.tar.gz"
    assert rollcall("bundle", str(run.root), "--out", str(out)) == 0
    log = unpacked(out, tmp_path / "unpacked")["logs/head.log"]
    assert log.splitlines()[0] == "the page: http://h:8267/?read=********"


def test_the_token_of_a_job_s_cluster_is_known_where_the_job_is_named_by_a_short_path(
    run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run.jobs / "job-1"
    for directory, path in ((run.jobs, "job-1"), (job, "."), (run.root, "jobs/job-1")):
        monkeypatch.chdir(directory)
        assert TOKEN in found_secrets.of(RunFiles(Path(path)), {})


def test_the_journal_of_a_bundle_is_whole_and_can_be_reported(
    run: RunFiles, rollcall: Rollcall, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bundle.tgz"
    assert rollcall("bundle", str(run.root), "--out", str(out)) == 0
    unpacked(out, tmp_path / "unpacked")
    folder = tmp_path / "unpacked" / "rollcall-low-rate"
    kinds = [event["kind"] for event in read_events(folder / "journal.jsonl")]
    assert kinds == ["start", "attempt", "failure"]
    assert rollcall("report", str(folder)) == 0
    assert "usage" in capsys.readouterr().out


def test_the_contents_are_printed_and_so_is_what_is_left_out(
    run: RunFiles, rollcall: Rollcall, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bundle.tar.gz"
    long = "".join(f"line {number}\n" for number in range(100_000))
    (run.logs / "worker-1.log").write_text(long)
    assert rollcall("bundle", str(run.root), "--out", str(out), "--json") == 0
    row = json.loads(capsys.readouterr().out)
    members = unpacked(out, tmp_path / "unpacked")
    assert [one["name"] for one in row["members"]] == list(members)
    assert row["bytes"] == out.stat().st_size
    (note,) = [one["note"] for one in row["members"] if one["name"] == "logs/worker-1.log"]
    assert f"of {len(long)}" in note
    kept = members["logs/worker-1.log"].splitlines()
    assert kept[0] == "line 0"
    assert kept[-1] == "line 99999"
    assert len(members["logs/worker-1.log"]) <= bundle.BEGIN_BYTES + bundle.END_BYTES + 100
    assert [line for line in kept if line.endswith("are left out ...]")]
    out.unlink()
    assert rollcall("bundle", str(run.root), "--out", str(out)) == 0
    assert "logs/worker-1.log (" in capsys.readouterr().out


def test_the_size_has_a_bound_and_the_newest_logs_come_first(
    run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        path = run.logs / f"attempt-{number}.log"
        path.write_text("x" * 99 + "\n")
        os.utime(path, (2e9 + number, 2e9 + number))
    monkeypatch.setattr(bundle, "MOST_BYTES", 2000)
    found = bundle.gather(run)
    assert sum(len(member.text) for member in found.members) < 2200
    names = [member.name for member in found.members if member.name.startswith("logs/attempt")]
    assert names[:3] == ["logs/attempt-19.log", "logs/attempt-18.log", "logs/attempt-17.log"]
    assert "logs/attempt-0.log" in {one.name for one in found.left_out}


def test_settings_of_the_job_hide_neither_versions_nor_a_fault_of_the_node(
    run: RunFiles, rollcall: Rollcall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLCALL_STEP_PATTERN", r"(?P<step>\d+)")
    out = tmp_path / "bundle.tar.gz"
    assert rollcall("bundle", str(run.root), "--out", str(out)) == 0
    about = json.loads(unpacked(out, tmp_path / "unpacked")["node.json"])
    assert about["faults"] == []
    assert {"rollcall", "ray"} <= set(about["versions"])


def test_an_archive_that_exists_stays_as_it_is(
    run: RunFiles, rollcall: Rollcall, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bundle.tar.gz"
    out.write_text("precious")
    assert rollcall("bundle", str(run.root), "--out", str(out)) == 64
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing", "--out", "x.tar.gz"), 64, "nothing does not exist: give the run's directory"),
        ((".", "--out", "x.tar.gz"), 64, "is not a run: it has no journal.jsonl; give the run"),
        (("file", "--out", "x.tar.gz"), 64, "file is not a directory"),
        (("low-rate", "--out", "x.zip"), 64, "give a name that ends in .tar.gz"),
        (
            ("low-rate", "--out", "none/x.tar.gz"),
            73,
            "x.tar.gz: No such file or directory: make the directory none, or give another --out",
        ),
    ],
)
def test_wrong_words_say_what_is_wrong(
    run: RunFiles,
    rollcall: Rollcall,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    (run.root.parent / "file").touch()
    monkeypatch.chdir(run.root.parent)
    assert rollcall("bundle", *words, "--json") == code
    output = capsys.readouterr()
    assert said in output.err
    assert json.loads(output.out)["exit_code"] == code
