"""What the control groups of this process, version 2 or 1, allow it of the machine's memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    used: str
    reclaimable: str  # the line of memory.stat with the file cache that is free for the asking


_V2 = _Files("memory.max", "memory.current", "inactive_file")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    folder: Path
    files: _Files

    def limit_bytes(self) -> int | None:
        """None: no limit. Raises `OSError`."""
        text = (self.folder / self.files.limit).read_text().strip()
        return None if text == "max" else int(text)

    def used_bytes(self) -> int:
        """Without the file cache that goes when memory is asked for. Raises `OSError`."""
        used = int((self.folder / self.files.used).read_text())
        for line in (self.folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == self.files.reclaimable:
                return max(0, used - int(value))
        return used


def limiting_groups(
    machine_bytes: int, root: Path = ROOT, membership: Path = MEMBERSHIP
) -> tuple[ControlGroup, ...]:
    """This process's group and those above it that allow less than `machine_bytes`."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # a kernel without control groups
        return ()
    groups = (group for line in lines for group in _groups(line, root))
    return tuple(group for group in groups if _is_below(group, machine_bytes))


def _groups(line: str, root: Path) -> Iterator[ControlGroup]:
    """From one line `id:controllers:path`; version 2 names no controllers."""
    _, controllers, path = line.split(":", 2)
    if controllers and "memory" not in controllers.split(","):
        return
    mount, files = (root / "memory", _V1) if controllers else (root, _V2)
    names = path.strip("/").split("/")
    # In a container the path may be the host's: the folders that exist here are the ones that count.
    for depth in range(len(names), -1, -1):
        folder = mount.joinpath(*names[:depth])
        if (folder / files.limit).exists():
            yield ControlGroup(folder, files)


def _is_below(group: ControlGroup, machine_bytes: int) -> bool:
    limit = group.limit_bytes()
    return limit is not None and limit < machine_bytes
