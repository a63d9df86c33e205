"""What is measured of one device, as values."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Kind(Enum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Identity:
    """What never changes while the agent lives."""

    uuid: str  # GPU-..., or CPU-<node>
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, which is not zero."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One device at one moment."""

    identity: Identity
    memory: Memory | Unknown
    taken_at: float  # time.monotonic(), before the device was asked


class Device(Protocol):
    identity: Identity

    def read_memory(self) -> Memory | Unknown:
        """May block for as long as the driver does; called from one thread alone."""
