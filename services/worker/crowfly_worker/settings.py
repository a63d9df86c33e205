"""What can be set of a worker; everything else it finds out."""

import math
import os
import socket
from dataclasses import dataclass, field

from crowfly import address, wire
from crowfly.settings import SettingsError, check_node, naming
from crowfly.store import parse_endpoints


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Raises `SettingsError`."""

    store: str = wire.STORE
    node: str = field(default_factory=socket.gethostname)
    listen: str = "127.0.0.1:0"  # port 0: any free one
    advertise: str | None = None  # what others are told; None: where it listens
    model: str = "smollm2"  # a name in the model cache, or a folder
    precision: str | None = None  # None: the fastest that this machine runs well
    threads: int | None = None  # of the CPU; None: all cores
    drain_seconds: float = 600.0  # after SIGTERM, for the answers that are running

    def __post_init__(self) -> None:
        with naming("store"):
            parse_endpoints(self.store)
        with naming("listen", "advertise"):
            address.advertised(self.listen, address.parse(self.listen).port, self.advertise)
        check_node(self.node)
        if self.precision is not None and self.precision not in wire.PRECISIONS:
            known = ", ".join(wire.PRECISIONS)
            raise SettingsError(f"CROWFLY_PRECISION={self.precision!r} is none of {known}")
        cores = os.cpu_count() or 1
        if self.threads is not None and not 1 <= self.threads <= cores:
            raise SettingsError(f"CROWFLY_THREADS={self.threads} is not 1..{cores}, the cores here")
        if not (self.drain_seconds >= 0 and math.isfinite(self.drain_seconds)):
            raise SettingsError(f"CROWFLY_DRAIN_SECONDS={self.drain_seconds:g} is not 0 or more")
