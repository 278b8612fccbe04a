"""A rank that runs several supervised stages: `python -m tests.cluster.stages_job FILE`.

FILE holds a list of command lines. The ranks begin their process group once for all of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed

from trainer.supervised.__main__ import main

torch.distributed.init_process_group("gloo")
for words in json.loads(Path(sys.argv[1]).read_text()):
    if code := main(words):
        sys.exit(code)
torch.distributed.destroy_process_group()
