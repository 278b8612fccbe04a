"""Bits of a rank's memory that differ from those of its last update, or of other ranks."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.models import fingerprint as fingerprints
from trainer.models.fingerprint import fingerprint
from trainer.types import ALONE, CorruptedRankError, Place
from trainer.workers.weight_check import Held, Print, WeightCheck, odd_ones

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def tensors(start: int = 0) -> list[torch.Tensor]:
    """Of each type, some that begin in the middle of a word, and of every form that a model has."""
    torch.manual_seed(0)
    made = [torch.randn(2 * fingerprints.ROW + 5).to(kind)[start:] for kind in TYPES]
    return [*made, torch.randn(3, 4).T, torch.randn(()), torch.zeros(0), torch.zeros(7)]


def flip(tensor: torch.Tensor, place: int, bit: int) -> None:
    flat = tensor.untyped_storage()
    start = tensor.storage_offset() * tensor.element_size()
    at = start + place % (tensor.numel() * tensor.element_size())
    flat[at] = flat[at] ^ (1 << bit)


@given(
    start=st.integers(0, 3),
    which=st.integers(0, len(TYPES) + 1),
    place=st.integers(0, 2**20),
    bit=st.integers(0, 7),
)
def test_each_bit_of_each_tensor_counts(start: int, which: int, place: int, bit: int) -> None:
    found = tensors(start)
    before = fingerprint(found)
    assert fingerprint(tensors(start)) == before
    flip(found[which], place, bit)
    assert fingerprint(found) != before
    flip(found[which], place, bit)
    assert fingerprint(found) == before


def test_equal_changes_of_two_places_do_not_cancel_out() -> None:
    one, other = torch.zeros(3 * fingerprints.ROW), torch.zeros(3)
    before = fingerprint([one, other])
    one[0], one[fingerprints.ROW] = 1.0, -1.0
    changed = fingerprint([one, other])
    one.zero_()
    other[0] = 1.0
    assert len({before, changed, fingerprint([one, other]), fingerprint([other, one])}) == 4


@pytest.mark.parametrize(
    ("bits", "devices", "odd"),
    [
        ([7, 7, 7], [1, 1, 1], []),
        ([7, 8, 7], [1, 1, 1], [1]),
        ([7, 8, 8, 7, 7], [1, 1, 1, 1, 1], [1, 2]),
        ([7, 8], [1, 1], [0, 1]),
        ([7, 8, 9], [1, 1, 1], [0, 1, 2]),
        ([7, 7, 8, 8], [1, 1, 2, 2], []),  # devices of another model may round otherwise
        ([7, 7, 8, 8, 8, 6], [1, 1, 2, 2, 2, 2], [5]),
        ([7], [1], []),
    ],
)
def test_ranks_that_differ_from_most_of_their_kind_are_odd(
    bits: list[int], devices: list[int], odd: list[int]
) -> None:
    prints = [Print(device, one) for device, one in zip(devices, bits, strict=True)]
    assert odd_ones(prints) == set(odd)


def test_memory_that_changes_between_two_updates_is_told_with_the_step_that_wrote_it() -> None:
    weights, moments = torch.ones(5), torch.ones(5)

    def held() -> Held:
        return Held([weights], [moments])

    check = WeightCheck("policy", ALONE, every=2)
    check.updated(1, held)
    weights[0] = 2.0  # between checks nothing is compared
    check.compare(held)
    check.updated(2, held)
    check.compare(held)
    flip(moments, 3, 1)
    with pytest.raises(CorruptedRankError, match=r"^policy-0: .*step 2 had written$"):
        check.compare(held)
    check.forget()
    check.compare(held)


def test_without_a_check_no_memory_is_read() -> None:
    def held() -> Held:
        raise AssertionError

    check = WeightCheck("policy", ALONE, every=0)
    check.updated(1, held)
    check.compare(held)


def test_the_error_travels_and_gets_the_place_of_the_rank() -> None:
    error = CorruptedRankError("policy", 3, "its weights differ")
    place = Place("worker-1", "node worker-1 at 10.0.0.7, process 12")
    sent = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error)).at(place)))
    assert sent.place == place
    assert str(sent) == "policy-3, node worker-1 at 10.0.0.7, process 12: its weights differ"
    assert (sent.role, sent.rank, sent.how) == ("policy", 3, str(sent))
