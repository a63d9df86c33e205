"""How long to wait before the next try."""

import random


class Backoff:
    """Doubles from `first` to `most` seconds. Jitter keeps many clients from returning at once."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._step = first

    def next(self) -> float:
        """Seconds to wait now: half to all of the current step."""
        step = self._step
        self._step = min(2 * step, self._most)
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked: the next failure waits for the first step again."""
        self._step = self._first
