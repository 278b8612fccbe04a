"""Stands for `verl.trainer.sft_trainer`: its lines, its checkpoints and its resume (verl 0.9.1).

It runs on each rank, and crashes at step 7 if it has not resumed.
"""

import os
import sys
import time
import zipfile
from pathlib import Path

STEPS, CRASHES_AT = 10, 7


def archive(path: Path) -> None:
    """Write what torch.save writes: a zip archive; the tensors are empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"")


def save(folder: Path, rank: int, world: int) -> None:
    for kind in ("model", "optim", "extra_state"):
        archive(folder / f"{kind}_world_size_{world}_rank_{rank}.pt")
    archive(folder / f"data_{rank}.pt")
    name = folder.name.removeprefix("global_step_")
    tracker = folder.parent / "latest_checkpointed_iteration.txt"
    if rank == 0:
        while len(list(folder.glob("data_*.pt"))) < world:
            time.sleep(0.05)
        tracker.write_text(name)
    while not tracker.is_file() or tracker.read_text() != name:  # a barrier of all ranks
        time.sleep(0.05)


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    directory = Path(given["trainer.default_local_dir"].strip("'"))
    begin = 0
    if given["trainer.resume_mode"] == "resume_path":
        path = Path(given["trainer.resume_from_path"])
        assert (path / f"data_{rank}.pt").is_file()
        begin = int(path.name.removeprefix("global_step_"))
    for step in range(begin + 1, STEPS + 1):
        if begin == 0 and step == CRASHES_AT:
            sys.exit("CUDA error: an illegal memory access was encountered")
        if rank == 0:
            print(f"step:{step} - train/loss:{1 / step} - train/lr:1e-05", flush=True)
        if step == STEPS or step % int(given["trainer.save_freq"]) == 0:
            save(directory / f"global_step_{step}", rank, world)
    if rank == 0:
        print("Final validation metrics: None", flush=True)


main()
