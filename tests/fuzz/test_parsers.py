"""Parsers of what strangers, damaged disks and other programs write raise their own errors alone.

`make fuzz` tries 5,000 cases of each, and keeps an input that fails in tests/data/fuzz.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract import redaction
from contract.files import stored_json
from contract.journal_file.lines import event_of, glance, line_of
from contract.manifest import files_in, made_in
from contract.options import ConfigError, ParseError
from contract.progress import Phase, Progress
from entrypoint.cluster import request_format
from entrypoint.config import parsers, pipeline, runtime_env
from entrypoint.config.pipeline import PipelineError
from entrypoint.job.failures.error_lines import ErrorLines
from entrypoint.job.failures.log_patterns import EvidenceLog, plain
from entrypoint.job.failures.tracebacks import Tracebacks
from entrypoint.job.recipes.recognise import recognised
from env.data.prompts import ReadSettings, load_prompts
from env.data.rows import PromptError
from env.http import protocol as rewards
from env.retrieval import protocol as retrieval
from tests.support.fuzzing import Parser, fuzz
from trainer.config import parse
from trainer.config.read_flags import read_file
from trainer.config.translate import shell
from trainer.config.translate.bash.syntax import ScriptSyntaxError

CHECK_IN = json.dumps(
    {
        **{"node": "worker-1", "address": "10.0.0.2", "versions": {"ray": "2.55"}, "clock": 1.5},
        **{"inventory": {"GPU": 8}, "joined": True, "warnings": ["a"], "unfit": [], "oom_kills": 0},
    }
).encode()
SUBMISSION = json.dumps({"job": ["python", "a.py"], "runtime_env": {"pip": ["x"]}, "key": "k"})
STAGES = json.dumps({"stages": [{"name": "sft", "job": ["a"], "runtime_env": {}, "key": ""}]})
QUERY = json.dumps({"node": "worker-1", "life": "a", "file": "b", "offset": "0", "gpus": "[]"})
RUNTIME_ENV = b'{"pip": ["einops"], "env_vars": {"A": "1"}, "excludes": ["/data/"]}'
PIPELINE = b"""stages:
  - name: sft
    job: sft --pretrain m --save_path out
    runtime_env: {pip: [einops]}
  - {name: ppo, job: "--pretrain {stage.sft.model} --prompt_data d"}
"""
EVENT = {
    **{"at": "2026-01-01T00:00:01.000+00:00", "node": "head", "epoch": 2, "attempt": 1},
    **{"kind": "step", "sentence": "step 4 ended", "details": {"step": 4, "reward": 0.5}},
}
MANIFEST = json.dumps(
    {"step": 4, "files": {"policy.pt": {"bytes": 3, "sha256": "0" * 64}}}
).encode()
PROGRESS = json.dumps(Progress(step=3, at="2026-01-01T00:00:01+00:00").as_dict()).encode()
ROWS = b"""{"prompt": "1+1=", "answer": "2"}
{"prompt": "2+1=", "answer": "3"}
"""
LOG = (
    b'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
    b"ValueError: expected 3\n\x1b[36m(TrainActor pid=3, ip=10.0.0.2)\x1b[0m CUDA out of memory\n"
    b"step 3/100 loss 0.5\nNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
)
SCRIPT = b"""set -e
export A=${B:-1} C=(a b)
for i in 1 2; do
  if [[ $i -eq 1 && -n "$A" ]]; then python -m verl.trainer.main_ppo a.b=$i 'c=d'; fi
done
python3 train.py --x "$(basename /a/b)" <<EOF
text
EOF
"""
TOML = b"a = 1\n[b]\nc = [2]\n"
FLAGS = b"pretrain: m\nprompt_data: [a, b]\nmax_steps: 3\ntrain:\n  batch_size: 4\n"
COMMAND = b"--run_dir r --remote_rm_url arithmetic --pretrain m --prompt_data d --l2 0"
REWARDS = json.dumps({"query": ["a"], "prompts": ["b"], "labels": ["c"]}).encode()
ANSWER = json.dumps({"rewards": [1.0], "scores": [1], "extra_logs": {"a": [2]}, "errors": [None]})
SEARCH = json.dumps({"queries": ["a"], "topk": 3, "return_scores": True}).encode()
FOUND = json.dumps({"result": [[{"document": {"id": 1, "contents": "t\nx"}, "score": 0.5}]]})
SECRETS = (
    b"export HF_TOKEN=hf_abcdefgh --api_key 'a b' https://user:pw@host/ Bearer abcdefghijklmnopq\n"
)


def text_of(content: bytes) -> str:
    """As a command line, a variable or a file name comes to a program."""
    return content.decode(errors="surrogateescape")


def of_text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda content: parse(text_of(content))


def in_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Parses a file of the content."""

    def parse(content: bytes) -> Any:
        path = Path(name)  # in a directory of the test's own
        path.write_bytes(content)
        return read(path)

    return parse


def read_line(content: bytes) -> None:
    event, seen = event_of(content), glance(content)
    assert (event is None) == (seen is None)
    if event is not None and seen is not None:
        assert (seen.kind, seen.attempt) == (event["kind"], event["attempt"])
        json.dumps(event).encode()


def read_query(content: bytes) -> None:
    row = json.loads(content)
    if not isinstance(row, dict):
        raise ValueError
    given = {str(name): str(value) for name, value in row.items()}
    request_format.query(request_format.Question, given)
    request_format.query(request_format.LogPart, given)


def read_log(content: bytes) -> None:
    log, lines, tracebacks = EvidenceLog(lambda: 1), ErrorLines(), Tracebacks()
    for line in text_of(content).splitlines():
        log.read(plain(line))
        lines.read(tracebacks.read(plain(line)))
    log.read_ray_message(text_of(content))


def read_masks(content: bytes) -> None:
    text = text_of(content)
    found = redaction.redact(text)
    assert redaction.redact(found) == found
    redaction.redact_lines(text)
    redaction.redact_all({"text": [text], "env_vars": {"A_TOKEN": text}})


def read_script(content: bytes) -> None:
    shell.read(text_of(content), {})


def read_command(content: bytes) -> None:
    try:
        words = shlex.split(text_of(content))
    except ValueError:
        return
    recognised(words, None)


def read_rows(path: Path) -> None:
    load_prompts(path, ReadSettings(input_key="prompt", label_key="answer"))


PARSERS = [
    Parser("check-in", request_format.node_info, (ValueError,), (CHECK_IN,)),
    Parser("submission", request_format.submission, (ValueError,), (SUBMISSION.encode(),)),
    Parser("pipeline-request", request_format.pipeline, (ValueError,), (STAGES.encode(),)),
    Parser("query", read_query, (ValueError, RecursionError), (QUERY.encode(),)),
    Parser("runtime-env", of_text(runtime_env.parsed), (ParseError,), (RUNTIME_ENV, b"pip: [a]")),
    Parser("pipeline-file", of_text(pipeline.parsed), (PipelineError,), (PIPELINE,)),
    Parser("journal-line", read_line, (), (line_of(EVENT), json.dumps(EVENT).encode())),
    Parser("manifest-files", files_in, (ValueError,), (MANIFEST,)),
    Parser("manifest-step", made_in, (), (MANIFEST,)),
    Parser("progress", in_file("progress.json", Progress.read), (), (PROGRESS,)),
    Parser("phase", in_file("phase.json", Phase.read), (), (PROGRESS,)),
    Parser("stored-json", stored_json.parsed, (ValueError,), (PROGRESS, MANIFEST)),
    Parser("data-rows", in_file("rows.jsonl", read_rows), (PromptError,), (ROWS,)),
    Parser("log", read_log, (), (LOG,)),
    Parser("masks", read_masks, (), (SECRETS,)),
    Parser("script", read_script, (ScriptSyntaxError,), (SCRIPT,)),
    Parser("typed-command", read_command, (), (b"python3 -m verl.trainer.main_ppo a.b=1",)),
    Parser("flags-yaml", in_file("f.yaml", partial(read_file, known={})), (), (FLAGS,)),
    Parser(
        "flags-toml", in_file("f.toml", partial(read_file, known={})), (), (b"a = 1\n[b]\nc=[2]",)
    ),
    Parser(
        "flags",
        lambda content: parse.parse(text_of(content).split()),
        (ConfigError,),
        (COMMAND,),
    ),
    Parser("reward-request", rewards.read_request, (rewards.RequestError,), (REWARDS,)),
    Parser(
        "reward-answer",
        lambda content: rewards.read_answer(json.loads(content), 1),
        (rewards.AnswerError, ValueError, RecursionError),
        (ANSWER.encode(),),
    ),
    Parser(
        "search-request",
        partial(retrieval.read_request, default_topk=3, max_topk=10),
        (retrieval.RequestError,),
        (SEARCH,),
    ),
    Parser(
        "search-answer",
        lambda content: retrieval.read_answer(json.loads(content), 1),
        (retrieval.AnswerError, ValueError, RecursionError),
        (FOUND.encode(),),
    ),
    *(
        Parser(f"variable-{one.__name__}", of_text(one), (ParseError,), samples)
        for one, samples in {
            parsers.resources: (b'{"v100": 8}',),
            parsers.arguments: (b"python a.py --x 'b | c'",),
            parsers.ray_dashboard: (b"http://[::1]:8265/a", b"head:8265"),
            parsers.url: (b"http://127.0.0.1:5000/x",),
            parsers.host: (b"[fe80::1]", b"head.svc"),
            parsers.storage: (b"s3://bucket/prefix",),
            parsers.size: (b"80 GiB",),
            parsers.duration: (b"1.5m",),
            parsers.port_range: (b"10002-10999",),
            parsers.ray_temp_dir: (b"/tmp/ray",),
        }.items()
    ),
]


@pytest.mark.parametrize("parser", PARSERS, ids=str)
def test_wrong_input_is_answered_by_the_parsers_own_error(
    parser: Parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fuzz(parser)


@pytest.mark.parametrize("parser", PARSERS, ids=str)
def test_the_samples_are_right(
    parser: Parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if parser.name == "flags":  # its files are not here
        return
    for sample in parser.samples:
        parser.parse(sample)
