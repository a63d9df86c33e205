"""`crowfly doctor`: what this machine has, what is missing, and what to do about it."""

import argparse
import asyncio
import ctypes
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc
from rich.console import Console
from rich.text import Text

from crowfly import wire
from crowfly.models import CATALOGUE, cache, folder
from crowfly.store import StoreError, open_store
from crowfly.store.embedded import EtcdError, find_etcd
from crowfly.v1 import dispatcher_pb2, dispatcher_pb2_grpc

_CALL_SECONDS = 2.0


class Verdict(Enum):
    GOOD = ("ok", "green")
    ABSENT = ("--", "yellow")  # works without it
    MISSING = ("!!", "red")  # `crowfly up` cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    what: str
    found: str  # in plain words, and what to do if it is not good


def run(arguments: argparse.Namespace) -> int:
    """0 if `crowfly up` can run here, else 1."""
    console, missing = Console(highlight=False), False
    for finding in asyncio.run(_examine(arguments.dispatcher)):
        mark, colour = finding.verdict.value
        console.print(Text(mark, colour), Text(f"{finding.what:<11}", "bold"), finding.found)
        missing |= finding.verdict is Verdict.MISSING
    return int(missing)


async def _examine(dispatcher: str) -> list[Finding]:
    return [
        _python(),
        _cpu(),
        _memory(),
        _nvml(),
        *_packages(),
        _etcd(),
        await _store(os.environ.get("CROWFLY_STORE", wire.STORE)),
        _model(os.environ.get("CROWFLY_MODEL", "smollm2")),
        await _dispatcher(dispatcher),
    ]


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
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (os.sysconf(name) * page / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    return Finding(Verdict.GOOD, "memory", f"{total:.1f} GiB, {free:.1f} GiB unused")


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
        "torch": "the worker needs it: pip install 'crowfly[worker]'",
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


def _etcd() -> Finding:
    try:
        return Finding(Verdict.GOOD, "etcd", f"to embed: {find_etcd()}")
    except EtcdError as error:
        return Finding(Verdict.MISSING, "etcd", str(error))


async def _store(endpoints: str) -> Finding:
    store = open_store(endpoints)
    try:
        nodes = await store.read(wire.NODES)
        workers = await store.read(wire.WORKERS)
    except StoreError as error:
        return Finding(Verdict.ABSENT, "store", f"{error}; `crowfly up` starts its own")
    finally:
        await store.close()
    return Finding(
        Verdict.GOOD, "store", f"{endpoints}: {len(nodes)} nodes, {len(workers)} workers registered"
    )


def _model(name: str) -> Finding:
    try:
        return Finding(Verdict.GOOD, "model", f"{name}: {folder(name)}")
    except FileNotFoundError as error:
        kind = Verdict.ABSENT if name in CATALOGUE else Verdict.MISSING
        return Finding(kind, "model", f"{error} (the cache is {cache()})")


async def _dispatcher(where: str) -> Finding:
    async with grpc.aio.insecure_channel(where, options=wire.CHANNEL_OPTIONS) as channel:
        stub = dispatcher_pb2_grpc.DispatcherServiceStub(channel)
        try:
            cluster = await stub.GetCluster(
                dispatcher_pb2.GetClusterRequest(), timeout=_CALL_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            return Finding(
                Verdict.ABSENT, "dispatcher", f"none at {where} ({error.code().name.lower()})"
            )
    workers = [
        f"{worker.registration.worker_id} "
        + dispatcher_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower()
        for worker in cluster.workers
    ]
    stale = "; the store does not answer it, its map is stale" if cluster.map_stale else ""
    return Finding(
        Verdict.GOOD, "dispatcher", f"{where}: {', '.join(workers) or 'no worker'}{stale}"
    )
