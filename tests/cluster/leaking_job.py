"""The training job without training, which prints its secrets, and ends with an error if asked."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from contract.redaction import SECRET_NAME
from tests.support import node_cluster_job

ERROR = "leak"
"""The file in the run directory that ends the job with an error."""


def end_if_asked() -> None:
    asked = Path(os.environ["ROLLCALL_RUN_DIR"]) / ERROR
    while not asked.exists():
        time.sleep(0.1)
    asked.unlink()
    print(f"RuntimeError: cannot log in as {sys.argv[1:]}", file=sys.stderr, flush=True)
    os._exit(1)


def main() -> int:
    print("arguments:", *sys.argv[1:], sys.argv[1:], flush=True)
    for name, value in os.environ.items():
        if SECRET_NAME.search(name) or "PROXY" in name:
            print(f"{name}={value}", value, flush=True)
    threading.Thread(target=end_if_asked, daemon=True).start()
    return node_cluster_job.main()


if __name__ == "__main__":
    sys.exit(main())
