"""Where invented people live: only a passage answers a question, and the tiny model can read it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from env.environments.search import Search
from env.episodes.types import Reply
from env.prepare.__main__ import main
from env.prepare.people import People, draw
from env.retrieval.client import SearchResult, SearchStatus
from env.retrieval.types import Document

SMALL = ["people", "--passages", "600", "--train-size", "100", "--eval-size", "20"]
TINY = ["--warmup-size", "200", "--hidden-size", "16", "--layers", "1", "--heads", "2"]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepare") / "people"
    assert main([*SMALL, *TINY, "--out", str(out)]) == 0
    return out


def test_each_question_has_its_answer_in_one_passage(prepared: Path) -> None:
    passages = [row["contents"] for row in rows(prepared / "corpus.jsonl")]
    assert len(passages) == len(set(passages)) == 600
    questions = {split: rows(prepared / f"{split}.jsonl") for split in ("train", "eval")}
    assert [len(asked) for asked in questions.values()] == [100, 20]
    prompts = [row["prompt"] for asked in questions.values() for row in asked]
    assert len(set(prompts)) == 120
    for row in [row for asked in questions.values() for row in asked]:
        name = row["prompt"].removeprefix("Where does ").removesuffix(" live?")
        (found,) = [passage for passage in passages if name in passage]
        assert found == f'"{name}"\n{name} lives in {row["answer"]}'


def test_the_solved_questions_are_others_and_search_as_seldom_as_wanted(prepared: Path) -> None:
    asked = {
        row["prompt"] for name in ("train", "eval") for row in rows(prepared / f"{name}.jsonl")
    }
    solved = rows(prepared / "warmup.jsonl")
    first = [row["completion"] for row in solved if row["prompt"].endswith("live?")]
    assert not asked & {row["prompt"] for row in solved}
    assert len(solved) == 3 * len(first) == 600
    assert sum(step.startswith("<search>") for step in first) / len(first) == pytest.approx(
        0.2, abs=0.1
    )


class OnePassage:
    def __init__(self, document: Document) -> None:
        self.document = document

    async def search(self, queries: object) -> list[SearchResult]:
        return [SearchResult(SearchStatus.OK, (self.document,))]

    async def close(self) -> None: ...


def test_a_solved_question_shows_what_the_environment_writes() -> None:
    (person, *_) = draw(People(passages=10, train_size=1, eval_size=1))
    search = Search(OnePassage(Document(f'"{person.name}"\n{person.fact}')))
    turn = asyncio.run(search.step(Reply(person.search)))
    assert turn.text == person.found


def test_the_model_has_a_token_for_each_syllable_and_phrase(prepared: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared / "model")
    text = "Where does fewaxo live?<search>fewaxo</search>\n\n<information>Doc 1"
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == 14
    other = "My previous action is invalid: {~}"
    assert tokenizer.decode(tokenizer(other)["input_ids"]) == other


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--passages", "1000001"], "there are only 1000000 names"),
        (["--passages", "10"], "want more people than the 10 of --passages"),
        (["--searched", "1.5"], "--searched 1.5 is not a share"),
    ],
)
def test_what_cannot_be_made_is_refused(
    flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["people", *flags, "--out", str(tmp_path)]) == 64
    assert reason in capsys.readouterr().err
