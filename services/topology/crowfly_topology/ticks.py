"""Deadlines on a grid of equal steps, so that a loop neither drifts nor bursts."""

import math

from crowfly import wire


class Ticks:
    def __init__(self, start: float, period: float = wire.TICK_SECONDS) -> None:
        self._start = start
        self._period = period
        self._tick = 0

    def next(self, now: float) -> float:
        """The first grid point after the last one returned that is not past at `now`; those that
        were missed are skipped."""
        self._tick = max(self._tick + 1, math.ceil((now - self._start) / self._period))
        return self._start + self._tick * self._period
