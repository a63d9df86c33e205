"""A node without GPUs is one CPU device."""

import platform
from pathlib import Path

import psutil

from crowfly_topology.cgroup import limiting_groups
from crowfly_topology.sample import Identity, Kind, Memory, Unknown


class Cpu:
    """A `Device`: the machine's memory, or what its control group leaves of it."""

    def __init__(self, node: str) -> None:
        self.identity = Identity(f"CPU-{node}", Kind.CPU, _processor_name())
        self._groups = limiting_groups(psutil.virtual_memory().total)

    def read_memory(self) -> Memory | Unknown:
        try:
            return self._ask()
        except OSError as error:
            return Unknown(str(error))

    def _ask(self) -> Memory:
        machine = psutil.virtual_memory()
        total, free = machine.total, machine.available
        for group in self._groups:
            limit = group.limit_bytes()
            if limit is not None:
                total = min(total, limit)
                free = min(free, max(0, limit - group.used_bytes()))
        return Memory(total_bytes=total, free_bytes=free)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
