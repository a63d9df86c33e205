"""What every result file carries beside its figures: the machine, the versions, the spread."""

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES = ("torch", "grpcio", "protobuf", "uvloop", "numpy")


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p99, least and most of `values`, rounded to 0.01."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    figures = {
        "p50": statistics.median(ordered),
        "p99": p99,
        "min": ordered[0],
        "max": ordered[-1],
    }
    return {name: round(value, 2) for name, value in figures.items()} | {"n": len(ordered)}


def write(path: Path | None, figures: Mapping[str, object]) -> None:
    """Print the figures; with a path, write them there with the machine and the versions."""
    print(json.dumps(figures, indent=2))
    if path is not None:
        path.write_text(json.dumps({"machine": _machine(), **figures}, indent=2) + "\n", "utf-8")


def _machine() -> dict[str, object]:
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }
