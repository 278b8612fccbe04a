"""RUN/hf of frameworks that leave the trained model elsewhere."""

from __future__ import annotations

from pathlib import Path

from contract.run_dir import RunFiles


def test_the_link_outlives_a_move_of_the_run_directory_and_is_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("one", "two"):
        (run / name).mkdir(parents=True)
        (run / name / "config.json").write_text(name)
        assert RunFiles(run).link_exported(run / name)
    moved = run.rename(tmp_path / "moved")
    assert (moved / "hf/config.json").read_text() == "two"
    assert sorted(path.name for path in moved.iterdir()) == ["hf", "one", "two"]


def test_a_model_elsewhere_has_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert RunFiles(tmp_path / "run").link_exported(tmp_path / "model")
    assert (tmp_path / "run/hf").readlink() == tmp_path / "model"


def test_what_the_job_has_written_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    assert not RunFiles(tmp_path).link_exported(tmp_path / "model")
    assert not (tmp_path / "hf").is_symlink()
