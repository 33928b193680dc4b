"""A difference can be seen: what looks the same is told apart by the first element that differs, and by more digits."""

import pytest
import torch

from course_lib.grading.compare import alike, contrast, number
from course_lib.grading.spent import quantity

THIRDS, NAN = torch.arange(1, 9).double() / 3, float("nan")


def with_element(index, value):
    """Eight zeros but for one."""
    return torch.zeros(8, dtype=torch.float64).index_fill(0, torch.tensor(index), value)


@pytest.mark.parametrize("given, expected, words", [
    (torch.tensor([1.0]), torch.tensor([2.0]), "float32[1] = [1]: expected float32[1] = [2]"),
    (with_element(7, 0.0182), with_element(7, 0.0171),
     "float64[8] with 0.0182 at [7]: expected 0.0171; the largest difference is 0.0011"),
    (THIRDS.float().double(), THIRDS, "float64[8] with 0.33333334 at [0]: expected 0.33333333; the largest difference "
     "is 7.9e-08, as after a way through float32"),
    (with_element(6, NAN), with_element(6, 0.0), "float64[8] with nan at [6]: expected 0"),
    (torch.tensor([[2**60]]), torch.tensor([[2**60 + 1]]), "at [0, 0]: expected 1152921504606846977"),
    (torch.arange(8) < 7, torch.arange(8) < 8, "bool[8] with 0 at [7]: expected 1"),
    (torch.tensor(1 + 1e-9, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64),
     "float64[] with 1.000000001: expected 1;"),
    (1 + 1e-9, 1.0, "1.000000001: expected 1"),
    (2**1001, 2**1002, "a huge number: expected a huge number"), ([1], [2], "a list: expected a list"),
    (None, torch.zeros(2), "nothing (None): expected float32[2] = [0, 0]"), (NAN, 1.0, "nan: expected 1"),
    (torch.zeros(8), torch.zeros(8).half(), "float32[8] = [0, 0, 0, 0, 0, 0, ...]: expected float16[8]"),
])
def test_what_looks_the_same_is_told_apart(given, expected, words):
    assert not alike(given, expected) and words in contrast(given, expected)


def test_what_is_within_tolerance_is_not_named():
    assert " at [7]: expected 0.001;" in contrast(with_element(6, 1e-12), with_element(7, 1e-3), (0.0, 1e-9))


def test_numbers_have_one_notation_in_a_sentence():
    assert quantity(7e9, "exact bytes") + ", " + quantity(20_125_000_000, "exact bytes") == (
        "7,000,000,000 bytes, 20,125,000,000 bytes")
    assert [number(each) for each in (3, 0.125, 1234.5, 1_234_567, 1e20)] == [
        "3", "0.125", "1,234.5", "1,234,567", "1e+20"]
