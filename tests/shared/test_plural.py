"""Numbers in text."""

from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.plural import rounded


@given(st.floats(-9e14, 9e14), st.integers(2, 5))
def test_a_rounded_number_keeps_its_digits_and_never_has_a_positive_exponent(value: float, digits: int) -> None:
    text = rounded(value, digits)
    assert "e+" not in text
    assert float(text.replace(",", "")) == float(f"{value:.{digits}g}")


def test_large_numbers_are_written_out() -> None:
    assert [rounded(value, 3) for value in (0.0123456, 12.345, 1234.5, 999_960.0)] == [
        "0.0123",
        "12.3",
        "1,230",
        "1,000,000",
    ]
