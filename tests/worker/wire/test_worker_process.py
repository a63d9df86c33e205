"""A worker as it is run: a process with a real engine, a real etcd and real signals."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from crowfly import process, wire
from crowfly.store import Store, open_store
from crowfly.store.embedded import EmbeddedEtcd
from crowfly.v1 import worker_pb2, worker_pb2_grpc

WAIT_SECONDS = 60.0  # a loaded machine takes its time to import torch
NO_STORE = "127.0.0.1:1"
TICKET = "0" * 32

pytestmark = pytest.mark.etcd


@asynccontextmanager
async def spawned(
    environ: Mapping[str, str], log: Path, python: Sequence[str] = ("-m", "crowfly_worker")
) -> AsyncIterator[asyncio.subprocess.Process]:
    defaults = {"CROWFLY_NODE": "n", "CROWFLY_THREADS": "1", "CROWFLY_PRECISION": "fp32"}
    with log.open("wb") as out:
        worker = await process.spawn(
            [sys.executable, *python],
            log=out,
            environ={**os.environ, "CROWFLY_STORE": NO_STORE, **defaults, **environ},
        )
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield worker
    finally:
        await process.stop(worker, signal.SIGKILL, WAIT_SECONDS)


async def announced(worker: asyncio.subprocess.Process) -> Any:
    assert worker.stdout
    return json.loads(await worker.stdout.readline())


async def started_stream(
    stub: "worker_pb2_grpc.WorkerServiceAsyncStub", max_tokens: int
) -> grpc.aio.UnaryStreamCall[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]:
    """A stream that has brought its first tokens."""
    control = stub.Control()
    await control.write(worker_pb2.ControlRequest(hello=worker_pb2.Hello(dispatcher_id="d")))
    order = worker_pb2.OpenStream(
        sequence=1, reservation_id=TICKET, prompt_tokens=3, max_tokens=max_tokens
    )
    await control.write(worker_pb2.ControlRequest(open=order))
    async for message in control:
        if message.HasField("opened"):
            break
    control.cancel()
    call = stub.Generate(worker_pb2.GenerateRequest(ticket=TICKET, prompt_token_ids=[97, 98, 99]))
    await anext(aiter(call))
    return call


async def registered(store: Store) -> worker_pb2.WorkerRegistration:
    while True:
        for value in (await store.read(wire.WORKERS)).values():
            return worker_pb2.WorkerRegistration.FromString(value)
        await asyncio.sleep(0.02)


def test_without_an_etcd_it_serves_and_later_registers(byte_model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path / "etcd")
        async with etcd as endpoints:
            os.kill(etcd.pid, signal.SIGSTOP)
            environ = {"CROWFLY_STORE": endpoints, "CROWFLY_MODEL": str(byte_model)}
            try:
                async with spawned(environ, tmp_path / "log") as worker:
                    facts = await announced(worker)
                    async with grpc.aio.insecure_channel(facts["address"]) as channel:
                        stub = worker_pb2_grpc.WorkerServiceStub(channel)
                        await stub.GetTokenizer(worker_pb2.GetTokenizerRequest())
                    os.kill(etcd.pid, signal.SIGCONT)
                    store = open_store(endpoints)
                    registration = await registered(store)
                    assert registration.worker_id == facts["worker_id"]
                    assert registration.address == facts["address"]
                    assert registration.model.name == facts["model"] == byte_model.name
                    assert registration.model.vocab_size == 260
                    assert facts["precision"] == "fp32"
                    worker.send_signal(signal.SIGTERM)
                    assert await worker.wait() == 0
                    assert not await store.read(wire.WORKERS)
                    await store.close()
            finally:
                os.kill(etcd.pid, signal.SIGCONT)

    asyncio.run(scenario())


def test_sigterm_lets_the_answer_end_first(byte_model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        environ = {"CROWFLY_MODEL": str(byte_model)}
        async with spawned(environ, tmp_path / "log") as worker:
            facts = await announced(worker)
            async with grpc.aio.insecure_channel(facts["address"]) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                call = await started_stream(stub, max_tokens=400)
                worker.send_signal(signal.SIGTERM)
                last = [response async for response in call][-1]
                assert last.HasField("finish")
                assert last.finish.usage.completion_tokens <= 400
            assert await worker.wait() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_sigint_or_a_second_sigterm_ends_it_at_once(
    byte_model: Path, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    async def scenario() -> None:
        environ = {"CROWFLY_MODEL": str(byte_model)}
        async with spawned(environ, tmp_path / "log") as worker:
            await announced(worker)
            for sign in signals:
                worker.send_signal(sign)
            assert await worker.wait() == 0

    asyncio.run(scenario())
    assert "Traceback" not in (tmp_path / "log").read_text()


ENDLESS_STEP = """
import sys, time
from crowfly_worker import __main__, worker
from crowfly_worker.engine.engine import LlamaEngine
worker._STEP_SECONDS = 0.1
LlamaEngine.step = lambda engine: time.sleep(3600)
sys.exit(__main__.main())
"""


def test_a_step_that_does_not_end_is_one_clear_line(byte_model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        environ = {"CROWFLY_MODEL": str(byte_model)}
        async with spawned(environ, tmp_path / "log", ["-c", ENDLESS_STEP]) as worker:
            await announced(worker)
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == 1

    asyncio.run(scenario())
    log = (tmp_path / "log").read_text()
    assert "stopped all the same: the engine's step did not end within 0.1 s" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        ({"CROWFLY_MODEL": "no-such-model"}, 1, "no model 'no-such-model' here"),
        ({"CROWFLY_THREADS": "none"}, 2, "CROWFLY_THREADS='none' is not an integer"),
        ({"CROWFLY_LISTEN": "192.0.2.1:1"}, 2, "CROWFLY_LISTEN: cannot listen on 192.0.2.1:1"),
    ],
    ids=["model", "setting", "port"],
)
def test_what_cannot_work_is_one_clear_line(
    byte_model: Path, tmp_path: Path, environ: dict[str, str], code: int, said: str
) -> None:
    async def scenario() -> None:
        with_model = {"CROWFLY_MODEL": str(byte_model), **environ}
        async with spawned(with_model, tmp_path / "log") as worker:
            assert await worker.wait() == code

    asyncio.run(scenario())
    log = (tmp_path / "log").read_text()
    assert said in log
    assert "Traceback" not in log


def test_a_broken_model_folder_is_one_clear_line(byte_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in byte_model.iterdir():
        content = file.read_bytes()
        cut = len(content) // 2 if file.suffix == ".safetensors" else len(content)
        (broken / file.name).write_bytes(content[:cut])

    async def scenario() -> None:
        async with spawned({"CROWFLY_MODEL": str(broken)}, tmp_path / "log") as worker:
            assert await worker.wait() == 1

    asyncio.run(scenario())
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[-1].startswith(f"cannot serve model {str(broken)!r}:")
    assert "model.safetensors" in lines[-1]
    assert not any("Traceback" in line for line in lines)
