"""What a caller may ask for, and for how long."""

import asyncio
import math
from collections.abc import Mapping
from typing import Literal, TypedDict

from crowfly.errors import InvalidRequest

Profile = Literal["latency_optimized", "throughput_optimized", "memory_efficient"]
Precision = Literal["fp32", "bf16", "fp16"]
Kernel = Literal["torch", "fused", "mega"]


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


class Options(TypedDict, total=False):
    """Every option has a default that works."""

    model: str  # default: the only one that is served
    max_tokens: int  # default: the rest of the context
    temperature: float  # default 0: greedy
    top_k: int  # default 0: all
    top_p: float  # default 1: all
    seed: int  # default: drawn by the worker
    precision: Precision  # default: whatever the best worker runs
    kernel_hint: Kernel  # default: whatever the worker runs; see usage.kernel
    request_id: str  # default: drawn by the dispatcher
    timeout: float  # seconds for everything; default: none


def check_options(options: Mapping[str, object]) -> None:
    """Raises `InvalidRequest` for an option that does not exist: none is ignored."""
    if unknown := options.keys() - Options.__annotations__.keys():
        known = ", ".join(Options.__annotations__)
        raise InvalidRequest(f"no such option: {', '.join(sorted(unknown))} (there are {known})")


class Deadline:
    """The end of a request's time, from its option `timeout`.

    Raises `InvalidRequest` if that is no number of seconds over 0.
    """

    def __init__(self, seconds: object) -> None:
        if seconds is not None and not (
            isinstance(seconds, int | float) and 0 < seconds < math.inf
        ):
            raise InvalidRequest(f"timeout={seconds!r} is not a number of seconds over 0")
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.at = None if seconds is None else self._loop.time() + seconds

    def left(self) -> float | None:
        """Seconds from now; None: for ever."""
        return None if self.at is None else max(0.0, self.at - self._loop.time())
