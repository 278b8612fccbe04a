"""Parsers of what strangers, damaged disks and other programs write raise their own errors alone.

`make fuzz` tries 100,000 cases, and keeps an input that fails in tests/data/fuzz.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract import lease, redaction
from contract.files import stored_json
from contract.journal_file import index
from contract.journal_file.lines import event_of, glance, line_of
from contract.manifest import files_in, made_in
from contract.options import ConfigError, ParseError
from contract.progress import Phase, Progress
from contract.run_dir import RunFiles
from entrypoint.cluster import client, request_format
from entrypoint.config import durations, parsers, pipeline, runtime_env
from entrypoint.config.pipeline import PipelineError
from entrypoint.job import checkpoint_files
from entrypoint.job.failures.error_lines import ErrorLines
from entrypoint.job.failures.evidence_log import EvidenceLog, plain
from entrypoint.job.failures.tracebacks import Tracebacks
from entrypoint.job.recipes.openrlhf import command_line as openrlhf
from entrypoint.job.recipes.recognise import recognised
from entrypoint.job.recipes.trl import checkpoints as trl_checkpoints
from entrypoint.job.recipes.trl import command_line as trl
from entrypoint.job.recipes.verl import checkpoints as verl_checkpoints
from entrypoint.job.recipes.verl import command_line as verl
from entrypoint.machine import nccl_names, oom_kills, xid
from entrypoint.node import ray_start_errors
from entrypoint.run import kept_layouts, run_facts
from env import model_code
from env.data import template_messages
from env.data.prompts import ReadSettings, load_prompts
from env.data.rows import PromptError
from env.episodes import messages, tool_calls
from env.episodes.types import EnvironmentFailedError
from env.http import protocol as rewards
from env.retrieval import files as index_files
from env.retrieval import protocol as retrieval
from tests.support.fuzzing import Parser, fuzz
from trainer.config import model_files, parse
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
COMMANDS = (
    b"python3 -m verl.trainer.main_ppo a.b=1 trainer.nnodes=2 actor_rollout_ref.rollout.n=5",
    b"python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 2 --vllm.num_engines 4 --pretrain m",
    b"trl sft --model_name_or_path m --num_processes=2 --output_dir out",
)
MESSAGES = json.dumps(
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ]
).encode()
TOOLS = (
    b'<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    b'{"name": "f", "parameters": {"a": 1}}<|eom_id|>',
    b'[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]',
)
MODEL = json.dumps(
    {
        **{"model_type": "qwen2", "vocab_size": 8, "rope_parameters": {"rope_type": "default"}},
        **{"auto_map": {"AutoConfig": "a--b.C"}, "weight_map": {"w": "m.safetensors"}},
    }
).encode()
INDEX = json.dumps(
    {
        **{"kind": "bm25", "settings": {"language": "english"}, "corpus": "0", "passages": 1},
        **{"files": {}, "complete": True, "version": index_files.VERSION},
    }
).encode()
LAYOUTS = b'{"a": {"words": ["--x"], "reasons": [], "crc": 1}}'
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


def read_commands(content: bytes) -> None:
    """Whatever is typed has one reading for each recipe, or the recipe's own faults."""
    try:
        words = shlex.split(text_of(content))
    except ValueError:
        return
    openrlhf.faults(openrlhf.parse(words))
    verl.faults(verl.parse(words))
    trl.script_of(words, {"sft", "grpo"})
    trl.script_in(words, {"sft", "grpo"})


def read_messages(content: bytes) -> None:
    try:
        value = json.loads(content)
    except RecursionError:  # of this test: an environment gives values
        return
    template_messages.fitted(messages.checked(value), "")


def read_model(path: Path) -> None:
    for name in ("tokenizer_config.json", "model.safetensors.index.json"):
        path.with_name(name).write_bytes(path.read_bytes())
    list(model_files.faults(path.parent, tokenizer=True))
    model_files.shape_of(path.parent)
    model_code.code_of(path.parent)


def read_index(path: Path) -> None:
    index_files.read_complete(path.parent)


def read_landmarks(path: Path) -> None:
    index.landmarks(path)
    list(index.newest_first(path, "step"))


def read_checkpoints(path: Path) -> None:
    """A file of a checkpoint, under each of the names that a recipe looks for."""
    root = Path("out").absolute()
    for name in ("trainer_state.json", "latest", "model.safetensors.index.json", "config.json"):
        for step in ("checkpoint-3", "global_step_3"):
            (root / step).mkdir(parents=True, exist_ok=True)
            (root / step / name).write_bytes(path.read_bytes())
    (root / "latest_checkpointed_iteration.txt").write_bytes(path.read_bytes())
    trl_checkpoints.newest(root)
    trl_checkpoints.other_world(root / "checkpoint-3", 2)
    verl_checkpoints.newest(root)
    checkpoint_files.is_model(root / "checkpoint-3")


def read_facts(path: Path) -> None:
    run_facts.read(RunFiles(path.parent))


def read_kills(path: Path) -> None:
    oom_kills.count(path.parent)


def read_weights(path: Path) -> None:
    checkpoint_files.is_whole(path)


def read_answer_of_head(content: bytes) -> None:
    answer = httpx.Response(200, content=content)
    client._is_object(answer)
    client._why(answer)


def read_rows(path: Path) -> None:
    load_prompts(path, ReadSettings(input_key="prompt", label_key="answer"))


PARSERS = [
    Parser("check-in", request_format.node_info, (ValueError,), (CHECK_IN,)),
    Parser("submission", request_format.submission, (ValueError,), (SUBMISSION.encode(),)),
    Parser("pipeline-request", request_format.pipeline, (ValueError,), (STAGES.encode(),)),
    Parser("token-change", request_format.token_change, (ValueError,), (b'{"token": "abc"}',)),
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
    Parser("lease", in_file("1.json", lease.read), (), (b'{"host": "a", "pid": 3}',)),
    Parser("journal", in_file("journal.jsonl", read_landmarks), (), (line_of(EVENT) * 3,)),
    Parser("recipe-commands", read_commands, (), COMMANDS),
    Parser("messages", read_messages, (EnvironmentFailedError, ValueError), (MESSAGES,)),
    *(
        Parser(f"tool-calls-{family}", of_text(partial(tool_calls.parse, family=family)), (), TOOLS)
        for family in tool_calls.Family
    ),
    Parser("model-files", in_file("config.json", read_model), (), (MODEL,)),
    Parser("index", in_file("index.json", read_index), (index_files.IndexFault,), (INDEX,)),
    Parser("checkpoint", in_file("state", read_checkpoints), (), (b'{"global_step": 3}', b"3")),
    Parser(
        "weights",
        in_file("model.safetensors", read_weights),
        checkpoint_files.UNREADABLE,
        (b"\x13\0\0\0\0\0\0\0" + b'{"__metadata__":{}}',),
    ),
    Parser(
        "run-facts",
        in_file("run.json", lambda p: run_facts.read(RunFiles(p.parent))),
        (),
        (b'{"name": "a"}',),
    ),
    Parser(
        "kept-layouts",
        in_file("layouts.json", kept_layouts.read),
        (),
        (b'{"a": {"words": ["--x"], "reasons": [], "crc": 1}}',),
    ),
    Parser("head-answer", read_answer_of_head, (), (b'{"error": "no"}',)),
    Parser("nccl-names", of_text(nccl_names.parsed), (), (b"^=eth0,ib0:1",)),
    Parser("xid", of_text(lambda text: (xid.parse(text), xid.action(text))), (), (LOG,)),
    Parser(
        "oom-kills",
        in_file("memory.events", lambda p: oom_kills.count(p.parent)),
        (),
        (b"oom 1\noom_kill 3\n",),
    ),
    Parser("ray-words", of_text(ray_start_errors.last_words), (), (LOG,)),
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
            durations.time_limit: (b"1.5m",),
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
    fuzz(parser, len(PARSERS))


@pytest.mark.parametrize("parser", PARSERS, ids=str)
def test_the_samples_are_right(
    parser: Parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if parser.name == "flags":  # its files are not here
        return
    for sample in parser.samples:
        parser.parse(sample)
