"""Numbers in tables."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.numbers import BadNumberError, decimal_mark, parse_count, parse_number


@pytest.mark.parametrize(
    ("text", "mark", "value"),
    [
        ("$40.97", ".", Fraction(4097, 100)),
        ("1,031.20", ".", Fraction(10312, 10)),
        ("1.234,50", ",", Fraction(12345, 10)),
        ("1.234", ",", Fraction(1234)),
        ("0,5", ",", Fraction(1, 2)),
        (" 2.95 USD ", ".", Fraction(295, 100)),
        (".61", ".", Fraction(61, 100)),
        ("1e-2", ".", Fraction(1, 100)),
    ],
)
def test_a_number_is_read_exactly_as_people_write_it(text: str, mark: str, value: Fraction) -> None:
    assert parse_number(text, mark) == value


@pytest.mark.parametrize(
    "text", ["nan", "-NaN", "inf", "Infinity", "abc", "", "1.2.3", "1,2", "0x10", "1e999999999", "٣"]
)
def test_what_is_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(BadNumberError):
        parse_number(text)


@pytest.mark.parametrize("text", ["-1", "1.5", "nan"])
def test_a_count_is_whole_and_not_negative(text: str) -> None:
    with pytest.raises(BadNumberError):
        parse_count(text)


def test_the_decimal_mark_is_decided_once_for_the_whole_file() -> None:
    assert decimal_mark("t", ["1.234", "410,00"]) == ","
    assert decimal_mark("t", ["1.234", "", "n/a", "$2.5"]) == "."
    assert decimal_mark("t", ["1,234", "2.5"]) == "."
    assert decimal_mark("t", ["1,234", "2,5"]) == ","


def test_numbers_that_contradict_each_other_are_refused_with_both_named() -> None:
    with pytest.raises(DataError, match=r"`2,95` has a decimal comma, `3\.10` a decimal point"):
        decimal_mark("t", ["2,95", "3.10"])


def test_a_file_whose_only_numbers_could_be_either_is_refused() -> None:
    with pytest.raises(DataError, match=r"cannot tell whether `1,234`") as caught:
        decimal_mark("t", ["1,234"])
    assert caught.value.hint == "write `1234` or `1.2340`"
