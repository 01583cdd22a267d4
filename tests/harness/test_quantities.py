import re

import pytest

from harness.quantities import duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("33s", 33),
        ("3.1 h", 11_160),
        ("250ms", 0.25),
        ("10min", 600),
        ("54d", 54 * 86_400),
        ("1e3s", 1000),
        ("50_677h", 50_677 * 3600),
        ("-5s", -5),
        ("1y", 31_557_600),
    ],
)
def test_a_duration_is_read_with_its_unit(text, seconds):
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("33", "'33' has no unit: write for example 33s; units: ms, s, min, h, d, y"),
        ("3.1 hours", "unknown unit 'hours' in '3.1 hours'; known: ms, s, min, h, d, y"),
        ("5m", "unknown unit 'm' in '5m'; known: ms, s, min, h, d, y"),
        (
            "soon",
            "'soon' is not a duration: write a number and its unit, one of ms, s, min, h, d, y",
        ),
        ("", "'' is not a duration: write a number and its unit, one of ms, s, min, h, d, y"),
        (
            "1.2.3s",
            "'1.2.3s' is not a duration: write a number and its unit, one of ms, s, min, h, d, y",
        ),
    ],
)
def test_a_duration_without_a_known_unit_is_not_guessed(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        duration_s(text)
