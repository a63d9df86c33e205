"""What this machine has: processor, memory, GPUs, packages, etcd, models."""

import ctypes
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from crowfly.cli.finding import Finding, Verdict
from crowfly.models import CATALOGUE, cache, folder
from crowfly.store.embedded import EtcdError, find_etcd

_WORKER_EXTRA = "the worker needs it: pip install 'crowfly[worker]'"


def examine_machine(model: str) -> list[Finding]:
    return [_python(), _cpu(), _memory(), _nvml(), *_packages(), etcd(), _model(model)]


def _python() -> Finding:
    return Finding(Verdict.GOOD, "python", f"{platform.python_version()} on {platform.platform()}")


def _cpu() -> Finding:
    facts = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").exists() else ""
    flags = facts.partition("flags")[2].partition("\n")[0].split()
    fast = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    cores = len(os.sched_getaffinity(0))
    bf16 = "fast" if {"avx512_bf16", "amx_bf16"} & set(fast) else "no hardware, fp32 is used"
    return Finding(
        Verdict.GOOD, "cpu", f"{cores} cores, {' '.join(fast) or platform.machine()}; bf16: {bf16}"
    )


def _memory() -> Finding:
    try:
        from crowfly.memory import HostMemoryReader
    except ImportError:
        return Finding(Verdict.MISSING, "memory", "psutil is not installed: " + _WORKER_EXTRA)
    host = HostMemoryReader().read()
    total, free = host.total_bytes / 2**30, host.free_bytes / 2**30
    return Finding(Verdict.GOOD, "memory", f"{free:.1f} of {total:.1f} GiB can be had")


def _nvml() -> Finding:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Finding(Verdict.ABSENT, "gpu", "no NVML library, so no NVIDIA driver: CPU is used")
    code, count = nvml.nvmlInit_v2(), ctypes.c_uint()
    if code == 0:
        code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        nvml.nvmlShutdown()
    if code != 0:
        return Finding(Verdict.ABSENT, "gpu", f"NVML answers with error {code}: CPU is used")
    return Finding(Verdict.GOOD, "gpu", f"NVML sees {count.value} GPUs")


def _packages() -> Iterator[Finding]:
    needed = {
        "torch": _WORKER_EXTRA,
        "nvidia-ml-py": "the topology agent needs it: pip install 'crowfly[topology]'",
    }
    for name, advice in needed.items():
        try:
            version = importlib.metadata.version(name)
            yield Finding(Verdict.GOOD, name, version)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(Verdict.MISSING, name, f"not installed; {advice}")
    try:
        yield Finding(Verdict.GOOD, "triton", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding(Verdict.ABSENT, "triton", "not installed: only the torch kernels run")


def etcd() -> Finding:
    try:
        return Finding(Verdict.GOOD, "etcd", f"to embed: {find_etcd()}")
    except EtcdError as error:
        return Finding(Verdict.MISSING, "etcd", str(error))


def _model(name: str) -> Finding:
    try:
        return Finding(Verdict.GOOD, "model", f"{name}: {folder(name)}")
    except FileNotFoundError as error:
        kind = Verdict.ABSENT if name in CATALOGUE else Verdict.MISSING
        return Finding(kind, "model", f"{error} (the cache is {cache()})")
