"""Percent where a reward has a zero that means something, else what it means."""

import math

import pytest

from policies.evaluation.scale import in_words, relative


@pytest.mark.parametrize(
    ("gain", "base", "reward", "share"),
    [
        (0.1, 2.0, "modelled@5", 0.05),
        (-0.1, -2.0, "paper@2 alpha=0.5", -0.05),
        (0.1, 0.0, "modelled@5", None),
        (0.189 - 0.146, 0.146, "time-saved@4", (1 - 0.146) / (1 - 0.189) - 1),
        (0.5, 0.6, "time-saved", None),
        (0.01, -40.0, "speed-price@1 alpha=0.5", math.expm1(0.01)),
    ],
)
def test_in_proportion(gain: float, base: float, reward: str, share: float | None) -> None:
    found = relative(gain, base, reward)
    assert found == (share if share is None else pytest.approx(share))


def test_in_words() -> None:
    assert in_words(0.1, 2, "modelled@5") == "5.00%"
    assert in_words(0.043, 0.146, "time-saved@4", ".1f") == "4.3 points (5.3% faster)"
    assert in_words(-0.094, 0.005, "time-saved@4", ".1f") == "-9.4 points (8.6% slower)"
    assert in_words(0.043, 0.146, "saved-passes@2", ".1f") == "4.3 points"
    assert in_words(0.1, 0, "modelled@5") == "0.1"
