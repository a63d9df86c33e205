from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crowfly_topology.ticks import Ticks

PERIOD = 0.05
ROUNDING = 1e-6

delays = st.lists(st.floats(0, 3), min_size=2, max_size=20)


@given(start=st.floats(0, 1e6), delays=delays)
def test_deadlines_never_drift_nor_burst(start: float, delays: list[float]) -> None:
    ticks, now, deadlines = Ticks(start, PERIOD), start, []
    for delay in delays:  # the work between two ticks
        now += delay
        deadline = ticks.next(now)
        deadlines.append(deadline)
        assert deadline >= now - ROUNDING, "a missed grid point is skipped"
        now = max(now, deadline)
    for before, after in pairwise(deadlines):
        assert after - before >= PERIOD - ROUNDING, "two ticks are never closer than a period"
    steps = [(deadline - start) / PERIOD for deadline in deadlines]
    assert steps == pytest.approx([round(step) for step in steps], abs=1e-3), "all on the grid"


def test_work_within_the_period_misses_no_tick() -> None:
    ticks = Ticks(100.0, PERIOD)
    assert [ticks.next(100.001 + PERIOD * tick) for tick in range(4)] == pytest.approx(
        [100.05, 100.10, 100.15, 100.20]
    )
