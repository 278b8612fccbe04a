"""Reading prompts: every format gives the same, every fault is named with its line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from env.data.prompts import PromptError, PromptStream, ReadSettings, load_prompts
from env.data.rows import read_rows
from env.types import Prompt

ROWS: list[dict[str, Any]] = [
    {"question": "1+1=", "answer": "2"},
    {"question": "Ä€\u2028\n=", "answer": 3},
    {"question": "2+2=", "answer": "4"},
]
ANSWERED = ReadSettings("question", "answer")


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(PromptError) as caught:
        load_prompts(path, replace(ANSWERED, **options))
    return str(caught.value)


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows in each format that is read."""
    from datasets import Dataset, DatasetDict

    root = tmp_path_factory.mktemp("formats")
    rows = [{**row, "answer": str(row["answer"]), "other": 0} for row in ROWS]
    data = Dataset.from_list(rows)
    data.to_parquet(str(root / "rows.parquet"))
    data.save_to_disk(str(root / "saved"))
    DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(root / "splits"))
    return {
        "jsonl": write_jsonl(root / "rows.jsonl", rows),
        "parquet": root / "rows.parquet",
        "saved": root / "saved",
        "train split": root / "splits",
        "named split": root / "splits" / "train",
    }


def test_every_format_gives_the_same_prompts_and_the_same_fingerprint(
    formats: dict[str, Path],
) -> None:
    expected = [Prompt(i, str(r["question"]), str(r["answer"])) for i, r in enumerate(ROWS)]
    streams = {name: PromptStream(path, ANSWERED) for name, path in formats.items()}
    for name, path in formats.items():
        assert load_prompts(path, ANSWERED) == expected, name
    assert len({stream.state_dict()["fingerprint"] for stream in streams.values()}) == 1
    state = streams["jsonl"].state_dict()
    streams["parquet"].load_state_dict(state)


CHATS: list[dict[str, Any]] = [
    {
        "chat": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1="}],
        "truth": {"answer": 2, "unit": None},
    },
    {
        "chat": [{"role": "user", "content": [{"type": "text", "text": "2+2="}], "name": "me"}],
        "truth": {"answer": "4", "steps": [1, 2]},
    },
    {"chat": [{"role": "user", "content": "Ä?"}], "truth": {"answer": [{"a": 1}]}},
]
"""As datasets keeps them in columns of JSON texts: keys and types differ from row to row."""


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("label_key", ["truth", "truth.answer"])
def test_messages_and_labels_whose_keys_differ_are_read_from_every_format(
    tmp_path: Path, kind: str, label_key: str
) -> None:
    from datasets import Dataset, Json, List

    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        write_jsonl(path, CHATS)
    else:
        data = Dataset.from_list(CHATS, on_mixed_types="use_json")
        assert data.features["chat"] == List(Json())
        assert data.features["truth"] == Json()
        save = data.to_parquet if kind == "parquet" else data.save_to_disk
        save(str(path))
    prompts = load_prompts(path, ReadSettings("chat", label_key, render=json.dumps))
    truths = [row["truth"] for row in CHATS]
    labels = truths if label_key == "truth" else [truth["answer"] for truth in truths]
    assert [prompt.messages for prompt in prompts] == [row["chat"] for row in CHATS]
    assert [prompt.label for prompt in prompts] == [
        label if isinstance(label, str) else json.dumps(label) for label in labels
    ]


def test_messages_of_parquet_have_the_keys_that_were_given_to_them(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"chat": chat}]), path)
    (prompt,) = load_prompts(path, ReadSettings("chat", render=str))
    assert prompt.messages == chat


def test_tool_calls_may_lack_their_content(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"chat": chat}) + "\n" + json.dumps({"chat": json.dumps(chat)}))
    for prompt in load_prompts(path, ReadSettings("chat", render=str)):
        assert prompt.messages == [chat[0], {**chat[1], "content": None}, chat[2]]


@pytest.mark.parametrize("turn", [{"role": "user", "content": None}, {"role": "assistant"}])
def test_any_other_message_without_content_is_refused(tmp_path: Path, turn: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"chat": [turn]}))
    with pytest.raises(PromptError, match="where a text or messages are wanted"):
        load_prompts(path, ReadSettings("chat", render=str))


def test_a_json_text_within_columns_of_structs_and_lists_is_read(tmp_path: Path) -> None:
    kind = pyarrow.struct([("all", pyarrow.large_list(pyarrow.list_(pyarrow.json_(), 2)))])
    stored = pyarrow.struct([("all", pyarrow.large_list(pyarrow.list_(pyarrow.string(), 2)))])
    array = pyarrow.array([{"all": [['{"a":1}', None], ["[2]", "3"]]}, None], stored)
    path = tmp_path / "rows.parquet"
    columns = {"question": ["1+1=", "2+2="], "answer": array.cast(kind)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    rows = [row.value("answer") for row in read_rows(path, ["question", "answer"])]
    assert rows == [{"all": [[{"a": 1}, None], [[2], 3]]}, None]


def test_a_json_column_that_holds_something_else_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    answers = pyarrow.array(["4", "{"]).cast(pyarrow.json_())
    columns = {"question": ["1+1=", "2+2="], "answer": answers}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert refusal(path).startswith(f"{path}, row 2: a JSON column holds no JSON: ")


def test_images_of_a_saved_data_set_are_refused_and_never_decoded(tmp_path: Path) -> None:
    from datasets import Dataset, Features, Image, List, Value

    no_image = {"bytes": b"no image", "path": None}
    kinds = Features({"question": Value("string"), "images": List(Image(decode=False))})
    data = Dataset.from_list([{"question": "1+1=", "images": [no_image]}], features=kinds)
    data.info.features["images"] = List(Image())
    data.save_to_disk(str(tmp_path / "saved"))
    says = "row 1: has something in the column 'images'"
    assert says in refusal(tmp_path / "saved", label_key=None)


def test_each_line_is_one_row_whatever_unicode_it_holds(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", ROWS)
    prompts = load_prompts(path, ANSWERED)
    assert [prompt.label for prompt in prompts] == ["2", "3", "4"]
    assert prompts[1].text == "Ä€\u2028\n="


@pytest.mark.parametrize("start", ["", "\ufeff", "\n \n"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_may_be_one_list(tmp_path: Path, indent: int | None, start: str) -> None:
    path = tmp_path / "rows.json"
    rows = [{"input": "a\u2028b", "answer": 1}, {"input": "c", "answer": {"n": 2}}]
    path.write_text(start + json.dumps(rows, indent=indent))
    how = ReadSettings("input", "answer")
    read = [(prompt.text, prompt.label) for prompt in load_prompts(path, how)]
    assert read == [("a\u2028b", "1"), ("c", '{"n": 2}')]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"input": "a"},\n 3]', "rows.json, row 2: a JSON int, where an object is wanted"),
        ('[{"input": "a"},\n {]', "rows.json: not JSON: .* at line 2, column 3"),
        ('[{"input": "\\ud83d"}]', "rows.json, row 1: 'input' is not Unicode"),
        ('[{"put": "a"}]', "rows.json, row 1: the key 'input' is missing"),
        ("[]", "holds no prompts"),
    ],
)
def test_a_broken_list_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(PromptError, match=says):
        load_prompts(path)


def test_blank_lines_are_no_rows_but_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('\n{"question": "a", "answer": "b"}\n\n{"question": \n')
    assert refusal(path).startswith(f"{path}:4: not JSON: ")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"question": "a", "answer": "b"', ":2: not JSON: Expecting ',' delimiter at column 32"),
        (b"[1, 2]", ":2: a JSON list, where an object is wanted"),
        (b'"\xff"', ":2: not UTF-8"),
        (b'{"question": ' + b"[" * 100_000, ":2: not JSON: it is nested too deeply"),
        (b'{"question": ' + b"7" * 5000 + b"}", ":2: not JSON: Exceeds the limit"),
        (
            b'{"question": "\\ud83d\\ude00 \\uD83D", "answer": "b"}',
            ":2: 'question' is not Unicode: \\ud83d is incomplete",
        ),
        (
            b'{"qestion": "a", "answer": "b"}',
            "'question' is missing; its keys: 'qestion', 'answer'",
        ),
        (b'{"qestion": "a", "answer": "b"}', "did you mean 'qestion'?"),
        (b"{}", "its keys: none"),
        (b'{"question": "a", "answer": null}', ":2: 'answer' is null"),
        (b'{"question": "a", "answer": NaN}', ":2: 'answer' is nan, where a label is wanted"),
        (b'{"question": "a", "answer": -Infinity}', ":2: 'answer' is -inf, where a label"),
        (b'{"question": "", "answer": "b"}', ":2: 'question' holds \"\", where a text"),
        (b'{"question": 5, "answer": "b"}', ":2: 'question' holds 5, where a text"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"question": "a", "answer": "b"}\n' + line + b"\n")
    message = refusal(path)
    assert str(path) in message
    assert says in message
    assert "\n" not in message


def test_missing_empty_and_unknown_data_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl: holds no prompts. Give one" in refusal(tmp_path / "empty.jsonl")
    (tmp_path / "p.csv").touch()
    assert "unknown kind of file; wanted is a .jsonl file" in refusal(tmp_path / "p.csv")
    (tmp_path / "directory").mkdir()
    assert "holds no saved data set" in refusal(tmp_path / "directory")


def test_broken_binary_formats_are_refused(tmp_path: Path, formats: dict[str, Path]) -> None:
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(formats["parquet"].read_bytes()[:-20])
    assert "torn.parquet: not readable as Parquet" in refusal(torn)
    saved = tmp_path / "saved"
    saved.mkdir()
    for file in formats["saved"].iterdir():
        content = file.read_bytes()
        (saved / file.name).write_bytes(content[:100] if file.suffix == ".arrow" else content)
    assert "not readable as a saved data set" in refusal(saved)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        (Decimal("3.50"), "Decimal"),
        (date(2026, 1, 2), "date"),
        (b"4", "bytes"),
        ([{"when": date(2026, 1, 2)}], "list"),
    ],
)
def test_a_parquet_label_that_is_no_json_is_refused_with_its_row_and_what_would_be_right(
    tmp_path: Path, label: Any, kind: str
) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"question": ["1+1="], "answer": [label]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    message = refusal(path)
    assert message.startswith(f"{path}, row 1: 'answer' holds ")
    assert f"of type {kind}, where a text, a number" in message
    assert message.endswith("save the column as text")


def test_parquet_texts_that_are_no_unicode_are_refused(tmp_path: Path) -> None:
    texts = pyarrow.array([b"good", b"\xff\xfe"]).view(pyarrow.string())
    table = pyarrow.table({"question": texts, "answer": ["1", "2"]})
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    assert "p.parquet, row 1 or later: not UTF-8: " in refusal(tmp_path / "p.parquet")


@pytest.mark.parametrize("name", ["parquet", "saved"])
def test_a_missing_column_is_named_with_the_columns_that_exist(
    formats: dict[str, Path], name: str
) -> None:
    message = refusal(formats[name], label_key="anser")
    assert "'anser' is missing; its keys: 'question', 'answer', 'other'" in message
    assert "did you mean 'answer'?" in message


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("extra.gold.valeu", "; 'extra.gold' has: 'value'; did you mean 'extra.gold.value'?"),
        ("extra.glod.value", "; 'extra' has: 'gold', 'level'; did you mean 'extra.gold'?"),
        ("extra.level.value", "; 'extra.level' has: none"),
    ],
)
def test_a_missing_part_of_a_column_is_named_with_the_parts_that_exist(
    tmp_path: Path, key: str, says: str
) -> None:
    row = {"question": "a", "extra": {"gold": {"value": "1"}, "level": 2}}
    path = write_jsonl(tmp_path / "p.jsonl", [row])
    message = refusal(path, label_key=key)
    assert message == f"{path}:1: the key '{key}' is missing{says}"


def test_a_saved_data_set_without_a_training_split_offers_its_splits(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["validation", "test"]}')
    message = refusal(tmp_path)
    assert f"{tmp_path}/validation, {tmp_path}/test" in message


def test_the_template_wraps_the_text_and_a_template_without_a_place_is_refused(
    tmp_path: Path,
) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", ROWS)
    how = ReadSettings("question", input_template="Q: {} A:")
    assert load_prompts(path, how)[0].text == "Q: 1+1= A:"
    none = ReadSettings("question", input_template="")
    assert load_prompts(path, none)[0].text == "1+1=", "as OpenRLHF has it"
    for template in ("no place", "text", "{} {}", "{name}", "{"):
        assert "wants one {}" in refusal(path, input_template=template)


def test_max_samples_takes_the_first_rows_and_reads_no_further(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", ROWS)
    with path.open("a") as file:
        file.write("broken\n")
    assert [p.index for p in load_prompts(path, ReadSettings("question", max_samples=2))] == [0, 1]
    assert "at least 1" in refusal(path, max_samples=0)


def test_a_chat_needs_a_renderer_and_a_text_becomes_a_user_message(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    path = write_jsonl(tmp_path / "p.jsonl", [{"question": chat}, {"question": "2+2"}])

    def render(messages: list[dict[str, Any]]) -> str:
        return "|".join(f"{turn['role']}:{turn['content']}" for turn in messages)

    texts = [prompt.text for prompt in load_prompts(path, ReadSettings("question", render=render))]
    assert texts == ["system:Add.|user:1+1", "user:2+2"]
    assert ":1: 'question' is a chat: give --apply_chat_template" in refusal(path, label_key=None)


def test_messages_that_the_chat_template_refuses_are_named(tmp_path: Path) -> None:
    rows = [{"question": [{"role": "user", "content": text}]} for text in ("good", "bad\nline")]

    def render(messages: list[dict[str, Any]]) -> str:
        if messages[0]["content"] != "good":
            raise TypeError("can only concatenate str")  # jinja2 has errors of its own
        return "good"

    path = write_jsonl(tmp_path / "p.jsonl", rows)
    assert refusal(path, label_key=None, render=render) == (
        f"{path}:2: the chat template refuses the messages of 'question': can only concatenate str"
    )


def test_json_lines_are_read_without_the_heavy_libraries(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", ROWS)
    program = (
        "import sys; from env.data.prompts import PromptStream, ReadSettings\n"
        f"PromptStream({str(path)!r}, ReadSettings('question')).next_batch(2)\n"
        "print(sorted({'torch', 'datasets', 'pyarrow', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
