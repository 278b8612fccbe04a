"""Labels of mathematics: each is equal to its own text in a box, and to no other one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise, permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from env.rewards import units
from env.rewards.formula import items, spelled
from env.rewards.math_worker import Reading, is_same, read_completion, read_label
from tests.support.repository import ROOT

# Gold answers in the spellings of MATH and of other data sets: a line has one value.
VALUES = [
    line.split("\t")
    for line in (ROOT / "tests" / "data" / "math_labels.tsv").read_text().splitlines()
]
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"


@cache
def boxed(text: str) -> list[Reading]:
    return read_completion(rf"so $\boxed{{{text}}}$.")


def right(label: str, box: str) -> bool:
    """Whether the text of the box is the label. The label is read."""
    read = read_label(label)
    assert read, label
    return any(is_same(read, one, 6) for one in boxed(box))


def test_each_spelling_of_a_label_is_right_and_its_own_text_above_all() -> None:
    assert len(VALUES) > 180
    for spellings in VALUES:
        for label in spellings:
            assert right(label, label)
            assert right(spellings[0], label), (spellings[0], label)
            assert right(label, spellings[0]), (label, spellings[0])


FIRSTS = [spellings[0] for spellings in VALUES]


def equal(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for pair in pairs if right(*pair)]


def test_no_label_is_right_for_the_values_beside_it() -> None:
    assert equal(pairwise(FIRSTS)) == []
    assert equal((after, before) for before, after in pairwise(FIRSTS)) == []


@pytest.mark.faults
def test_no_label_is_right_for_one_of_another_value() -> None:
    assert equal(list(permutations(FIRSTS, 2))[::11]) == []


digits = st.integers(0, 10**12).map(str)
numbers = st.one_of(
    digits,
    st.integers(1, 10**12).map("{:,}".format),
    st.integers(1, 10**12).map("{:,}".format).map(lambda text: text.replace(",", r",\!")),
    st.decimals(-(10**4), 10**4, places=3).map(str),
    st.builds(r"\frac{{{}}}{{{}}}".format, st.integers(-99, 99), st.integers(1, 99)),
    st.builds("{}/{}".format, st.integers(-99, 99), st.integers(1, 99)),
    st.builds(r"{}\frac{{{}}}{{{}}}".format, st.integers(1, 99), st.just(1), st.integers(2, 9)),
    st.builds(r"{}.{}\overline{{{}}}".format, st.integers(0, 99), st.just(""), digits),
    st.builds("{}_{}".format, st.integers(0, 99999), st.integers(2, 16)),
    st.builds("{}e{}".format, st.integers(1, 99), st.integers(-30, 30)),
    st.builds(r"{} \times 10^{{{}}}".format, st.integers(1, 99), st.integers(-30, 30)),
    st.builds(r"{}\sqrt{{{}}}".format, st.integers(1, 99), st.integers(2, 99)),
    digits.map(r"{}\%".format),
    digits.map(r"\${}".format),
    digits.map(r"{}^\circ".format),
    digits.map(r"{} \text{{ cm}}".format),
    st.sampled_from((r"\pi", "x", "2k", r"x^2 + 1", "6 - 5i", r"4 \pm \sqrt{7}", r"-\infty")),
)
labels = st.one_of(
    numbers,
    st.lists(numbers, min_size=2, max_size=4).map(",".join),
    st.lists(numbers, min_size=2, max_size=4).map(", ".join),
    st.lists(numbers, min_size=2, max_size=3).map(lambda found: rf"\{{{','.join(found)}\}}"),
    st.lists(numbers, min_size=2, max_size=3).map(lambda found: f"({', '.join(found)})"),
    st.lists(numbers, min_size=2, max_size=3)
    .map(r" \\ ".join)
    .map(r"\begin{{pmatrix}} {} \end{{pmatrix}}".format),
    st.text("abcdefghijklmnopqrstuvwxyz -", min_size=2, max_size=20).map(r"\text{{{}}}".format),
)


@given(labels)
@settings(max_examples=30, deadline=None)
@example("0,1")
@example(r"0.\overline{3}")
@example("1,000")
def test_the_text_of_any_label_in_a_box_is_right_or_the_label_is_a_fault(label: str) -> None:
    assert not read_label(label) or right(label, label)


@given(labels, st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_labels_of_the_usual_forms_are_no_faults(label: str, other: int) -> None:
    if not label.startswith(r"\text"):
        assert read_label(label), label
        assert not right(rf"{label} , {other}", str(other + 1))


def value(text: str) -> list[int]:
    """Return what a text of digits and commas means."""
    if re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", text):
        return [int(text.replace(",", ""))]
    return sorted(int(part) for part in text.split(","))


texts = st.lists(st.from_regex(r"[0-9]{1,4}", fullmatch=True), min_size=1, max_size=4).map(",".join)


@given(texts, texts)
@settings(max_examples=60, deadline=None)
@example("1,234", "1234")
@example("0,111", "111")
@example("12,100,6", "12100,6")
@example("100,200,300", "100200300")
def test_a_comma_parts_numbers_unless_all_is_one_number_in_groups(label: str, box: str) -> None:
    wanted, given = value(label), value(box)
    repeated = len(wanted) == len(set(wanted)) > 1 and set(wanted) == set(given)
    assert right(label, box) == (wanted == given or repeated)


@pytest.mark.parametrize(
    ("label", "box", "same"),
    [
        ("0,1", "0.1", False),
        ("3,5,7", "3.5", False),
        ("10_2", "10", False),
        ("10", "10_2", False),
        ("6.02e-23", "1.6e-19", False),
        (r"6.02 \times 10^{-23}", r"6.021 \times 10^{-23}", True),
        (r"6.02 \times 10^{-23}", r"6.04 \times 10^{-23}", False),
        ("0", "6.02e-23", False),
        ("0.001", "0.0010001", True),
        ("0.0001", "0.00011", False),
        ("1/3", "0.333333", True),
        ("6.02e23", "6.03e23", False),
        ("16", "16t", False),
        (r"13\text{ cm}", "13", True),
        (r"13\text{ cm}", r"13\text{ m}", False),
        (r"13\text{ cm}", r"13\text{ cm}^2", False),
        (r"13\text{ sheep}", r"13\text{ animals}", True),
        ("x y", "y x", True),
        (r"\text{no}", "on", False),
        ("1,2", "1,2,2", True),
        ("1,2,2", "1,2", False),
        ("1,2", "1,2,3", False),
        ("1,2,3", "1,2", False),
        (r"(1,\!234, 5)", "(1234,5)", True),
        (r"1 - \frac{1}{\mathrm{e}}", r"1 + \frac{1}{\mathrm{e}}", False),
        ("b > a > c", "b > a", False),
        ("1" + "0" * 400, "1" + "0" * 400, True),
        ("1" + "0" * 400, "1" + "0" * 399 + "1", False),
    ],
)
def test_what_is_the_same(label: str, box: str, same: bool) -> None:
    assert right(label, box) == same
    assert right(label, label)


@pytest.mark.parametrize("label", ["}", "{", r"\frac{1}{", "???", "", "()", '{"a": 1}'])
def test_a_label_that_cannot_be_read_or_stand_in_a_box_is_a_fault(label: str) -> None:
    assert not read_label(label)


def test_numbers_are_spelled_as_they_are_read() -> None:
    assert spelled(r"(3,500) and (1,000)") == "(3, 500) and (1000)"
    assert spelled(r"11,\! 111,\! 100 2{,}500 1\,000") == "11111100 2500 1000"
    assert spelled(r"0.1\overline{6}") == r"\frac{15}{90}"
    assert spelled("1.5e-3 2 \\times 10^4") == "0.0015 20000"
    assert spelled(r"2.5(3) f(x) \log_2 8 x_1") == r"2.5(3) f(x) \log_2 8 x_1"
    assert [item.latex for item in items(r"\{1, (2,3), \frac{4,000}{5}\}")] == [
        "1",
        "(2,3)",
        r"\frac{4000}{5}",
    ]
    assert units.split(r"2\pi \text{ cm}^2") == (r"2\pi", r"\text{ cm}^2")
    assert units.split("2ab") == ("2ab", "")


@pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is absent")
def test_every_answer_of_gsm8k_is_right_in_a_box() -> None:
    rows = [
        json.loads(line)
        for split in ("train", "test")
        for line in (GSM8K / f"{split}.jsonl").read_text().splitlines()
    ]
    answers = {row["answer"].rpartition("#### ")[2] for row in rows}
    assert len(rows) == 8792
    assert [answer for answer in answers if not right(answer, answer)] == []
    assert equal(permutations(sorted(answers)[::100], 2)) == []
