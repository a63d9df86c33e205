"""How much memory this machine has for this process: the services that hold or report it ask here.

Needs psutil, which the `worker` and `topology` extras bring.
"""

from dataclasses import dataclass

import psutil

from crowfly.cgroup import limiting_groups


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int
    free_bytes: int  # what can be had without swapping


class HostMemoryReader:
    """The machine's memory, or what this process's control groups leave of it."""

    def __init__(self) -> None:
        self._groups = limiting_groups(psutil.virtual_memory().total)

    def read(self) -> HostMemory:
        """Raises `OSError` if a control group cannot be read."""
        machine = psutil.virtual_memory()
        total, free = machine.total, machine.available
        for group in self._groups:
            limit = group.limit_bytes()
            if limit is not None:
                total = min(total, limit)
                free = min(free, max(0, limit - group.used_bytes()))
        return HostMemory(total, free)
