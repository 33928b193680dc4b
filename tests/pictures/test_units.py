"""Bytes and seconds for a reader."""

import pytest

from course_lib.pictures.units import gigabytes, human_bytes, human_seconds, mebibytes


def test_bytes_have_a_decimal_unit():
    assert [human_bytes(size) for size in (0, 999, 1000, 882_200, 15e6, 2e12)] == [
        "0 B", "999 B", "1.0 kB", "882.2 kB", "15.0 MB", "2000.0 GB"]


def test_bytes_that_are_compared_are_in_one_unit():
    assert [gigabytes(size) for size in (0, 1.75e9, 14e9, 2794e9)] == ["0 GB", "1.75 GB", "14 GB", "2,794 GB"]
    assert [mebibytes(size) for size in (3 * 2**18, 25 * 2**20, 154_389_504, 6_230_444_800)] == [
        "768 KiB", "25 MiB", "147 MiB", "5,942 MiB"]


@pytest.mark.parametrize("value, words", [
    (0, "0 s"), (1.6e-5, "16 µs"), (0.000_38, "380 µs"), (0.000_999_8, "1 ms"), (0.0163, "16.3 ms"), (81.04, "81 s"),
    (0.99996, "1 s"), (250.2, "250 s"), (1234.0, "1234 s")])
def test_times_have_three_figures_and_a_unit(value, words):
    assert human_seconds(value) == words
