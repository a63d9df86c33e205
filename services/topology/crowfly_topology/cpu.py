"""A node without GPUs is one CPU device."""

import platform
from pathlib import Path

from crowfly.memory import HostMemoryReader
from crowfly_topology.sample import Identity, Kind, Memory, Unknown


class Cpu:
    """A `Device`: the machine's memory, or what its control group leaves of it."""

    def __init__(self, node: str) -> None:
        self.identity = Identity(f"CPU-{node}", Kind.CPU, _processor_name())
        self._memory = HostMemoryReader()

    def read_memory(self) -> Memory | Unknown:
        try:
            host = self._memory.read()
        except OSError as error:
            return Unknown(str(error))
        return Memory(total_bytes=host.total_bytes, free_bytes=host.free_bytes)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
