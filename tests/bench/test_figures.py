"""Medians, ranges, ratios and percentiles."""

from __future__ import annotations

from bench.figures import Measured, Measurement, figure, percentile, ratio


def _rounds(*values: float, run: str = "") -> dict[tuple[str, int], float]:
    return {(run, number): value for number, value in enumerate(values)}


def _measured(*rates: tuple[str, int, float]) -> Measured:
    return Measured(
        [
            Measurement(
                scenario="drain",
                variant="burst",
                contender=name,
                round=number,
                jobs=10,
                values={"rate": rate},
            )
            for name, number, rate in rates
        ]
    )


def test_a_disturbed_round_moves_the_range_and_not_the_median() -> None:
    found = figure([100.0, 3.0, 102.0, 101.0, 99.0])
    assert (found.median, found.lowest, found.highest, found.rounds) == (100.0, 3.0, 102.0, 5)


def test_a_ratio_is_of_medians_and_its_range_of_rounds_side_by_side() -> None:
    found = ratio(_rounds(20.0, 30.0, 40.0), _rounds(10.0, 10.0, 40.0))
    assert found is not None
    assert (found.value, found.lowest, found.highest) == (3.0, 1.0, 3.0)


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio(_rounds(1.0), {}) is None
    assert ratio({}, _rounds(1.0)) is None


def test_what_was_measured_in_different_runs_is_not_compared() -> None:
    morning, evening = _rounds(10.0, 30.0, run="morning"), _rounds(50.0, run="evening")
    assert ratio(morning, evening) is None
    found = ratio(morning | evening, _rounds(25.0, run="evening"))
    assert found is not None
    assert (found.value, found.lowest, found.highest) == (2.0, 2.0, 2.0)


def test_a_round_that_one_of_two_missed_is_not_paired() -> None:
    found = ratio(_rounds(20.0, 1.0), _rounds(10.0))
    assert found is not None
    assert (found.lowest, found.highest) == (2.0, 2.0)


def test_percentiles_are_values_that_were_measured() -> None:
    hundred = [float(number) for number in range(100, 0, -1)]
    assert percentile(hundred, 0.5) == 50.0
    assert percentile(hundred, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0], 0.99) == 2.0


def test_values_are_found_by_round_and_contestant() -> None:
    measured = _measured(("a", 0, 1.0), ("b", 0, 2.0), ("a", 1, 3.0))
    assert measured.values("drain", "burst", "a", "rate") == _rounds(1.0, 3.0)
    assert measured.values("drain", "burst", "a", "rss") == {}
    assert measured.figure("drain", "burst", "c", "rate") is None
    assert measured.contenders("drain", "burst") == ["a", "b"]
    assert measured.variants("submit") == []
