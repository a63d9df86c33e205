"""The agent as a process, with a real etcd and a worker's stream over gRPC."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from crowfly import process, wire
from crowfly.store import Store, open_store
from crowfly.store.embedded import EmbeddedEtcd
from crowfly.v1 import common_pb2, topology_pb2, topology_pb2_grpc

if TYPE_CHECKING:
    from tests.topology.conftest import MockNvml

GIB = 1 << 30
GPU_IS_LOST = 15
WAIT_SECONDS = 20.0

Condition = Callable[[topology_pb2.NodeRecord], bool]


@asynccontextmanager
async def an_agent(
    environ: Mapping[str, str], log: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """The process, and what it announced."""
    with log.open("wb") as out:
        agent = await process.spawn(
            [sys.executable, "-m", "crowfly_topology"], log=out, environ={**os.environ, **environ}
        )
    assert agent.stdout
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield agent, json.loads(await agent.stdout.readline())
    finally:
        await process.stop(agent, signal.SIGKILL, WAIT_SECONDS)


@asynccontextmanager
async def a_store(folder: Path) -> AsyncIterator[tuple[str, Store]]:
    async with EmbeddedEtcd(folder) as endpoints:
        store = open_store(endpoints)
        yield endpoints, store
        await store.close()


async def record_where(store: Store, condition: Condition) -> topology_pb2.NodeRecord:
    """The node's record, as soon as the condition holds for it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = await store.read(wire.NODES + "n1")
        records = [topology_pb2.NodeRecord.FromString(value) for value in found.values()]
        if records and condition(records[0]):
            return records[0]
        assert time.monotonic() < deadline, records
        await asyncio.sleep(0.02)


def only_the_first_is_unknown(record: topology_pb2.NodeRecord) -> bool:
    first, second = record.devices
    return not first.HasField("memory") and second.memory.free_bytes == 59 * GIB


async def ended(agent: asyncio.subprocess.Process, sign: signal.Signals) -> int:
    """Send `sign`; the exit code."""
    agent.send_signal(sign)
    return await agent.wait()


@pytest.mark.etcd
def test_an_agent_publishes_its_gpus_and_workers_and_takes_its_key_away(
    nvml: "MockNvml", tmp_path: Path
) -> None:
    report = common_pb2.WorkerReport(worker_id="w", epoch="e", sequence=1, free_pages=9)

    async def main() -> None:
        async with a_store(tmp_path / "etcd") as (endpoints, store):
            environ = {**nvml.environ, "CROWFLY_STORE": endpoints, "CROWFLY_NODE": "n1"}
            async with an_agent(environ, tmp_path / "log") as (agent, facts):
                assert facts["node"] == "n1"
                assert [device["uuid"] for device in facts["devices"]] == ["GPU-0", "GPU-1"]
                record = await record_where(store, lambda record: len(record.devices) == 2)
                assert record.agent_address == facts["address"]

                async with grpc.aio.insecure_channel(facts["address"]) as channel:
                    call = topology_pb2_grpc.TopologyServiceStub(channel).Report()
                    await call.write(topology_pb2.ReportRequest(report=report))
                    record = await record_where(store, lambda record: len(record.workers) == 1)
                    assert record.workers[0].report == report
                await record_where(store, lambda record: not record.workers)

                nvml.state.gpus[0].error = GPU_IS_LOST
                record = await record_where(store, only_the_first_is_unknown)
                assert record.devices[0].memory_unknown_reason == "NVML: GPU is lost"

                assert await ended(agent, signal.SIGTERM) == 0
            assert await store.read(wire.NODES) == {}
        assert nvml.state.shutdowns == 1

    asyncio.run(main())


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_without_a_store_and_with_a_hung_gpu_serves_and_stops(
    nvml: "MockNvml", tmp_path: Path, sign: signal.Signals
) -> None:
    async def main() -> None:
        # Nothing listens on port 1.
        environ = {**nvml.environ, "CROWFLY_STORE": "127.0.0.1:1", "CROWFLY_NODE": "n1"}
        async with an_agent(environ, tmp_path / "log") as (agent, facts):
            nvml.state.gpus[0].hangs = 1
            assert len(facts["devices"]) == 2
            async with grpc.aio.insecure_channel(facts["address"]) as channel:
                call = topology_pb2_grpc.TopologyServiceStub(channel).Report()
                await call.done_writing()
                assert await call == topology_pb2.ReportResponse()
            assert await ended(agent, sign) == 0

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["CROWFLY_LISTEN", "CROWFLY_STORE"])
def test_an_address_that_cannot_be_used_is_a_clear_error(setting: str, tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with taken:
            port = taken.sockets[0].getsockname()[1]
            value = f"127.0.0.1:{port}" if setting == "CROWFLY_LISTEN" else "no port"
            with (tmp_path / "log").open("wb") as out:
                agent = await process.spawn(
                    [sys.executable, "-m", "crowfly_topology"],
                    log=out,
                    environ={**os.environ, setting: value},
                )
            assert agent.stdout
            async with asyncio.timeout(WAIT_SECONDS):
                assert await agent.stdout.read() == b""
                assert await agent.wait() == 2
        return setting, value

    named = asyncio.run(main())
    said = (tmp_path / "log").read_text()
    assert all(word in said for word in named), said
