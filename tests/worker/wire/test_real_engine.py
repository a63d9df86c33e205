"""The wire around the real engine: callers who leave cost nothing."""

import asyncio
import logging
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly import wire
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import common_pb2, worker_pb2
from crowfly_worker.engine.build import load_engine
from crowfly_worker.engine.port import Engine, StepEvent

if TYPE_CHECKING:
    from tests.worker.wire.conftest import ServeEngine, Serving

CUTS = 50
BACK_SECONDS = 2.0
MOST_TOKENS_AFTER_A_CUT = 3
STEP_SECONDS = 0.05  # the tiny model alone makes a token per millisecond, faster than a cut
LONG = 500  # tokens of a prompt that takes three steps of 200
PROMPT = [256, *b"the crow flies"]


@pytest.fixture
def engine(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The byte model, with steps as long as a larger one's."""
    engine = load_engine(
        byte_model, host_free_bytes=8 << 30, precision="fp32", arena_bytes=16 << 20, threads=1
    )
    step = engine.step

    def paced() -> list[StepEvent]:
        time.sleep(STEP_SECONDS)
        return step()

    monkeypatch.setattr(engine, "step", paced)
    return engine


async def cut(serving: "Serving", *, abruptly: bool) -> int:
    """Leave an answer in the middle; the tokens that had come by then."""
    ticket = await serving.placed(len(PROMPT), max_tokens=400)
    request = worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=PROMPT)
    got = 0
    async with grpc.aio.insecure_channel(serving.worker.registration.address) as channel:
        call = type(serving.stub)(channel).Generate(request)
        while got < 5:
            got += len((await anext(aiter(call))).token_ids)
        if not abruptly:
            call.cancel()
    return got


def waits(tokens: int, report: common_pb2.WorkerReport) -> bool:
    return report.waiting_prompt_tokens == tokens


def test_dispatchers_hear_of_a_prompt_in_progress(
    engine: Engine,
    byte_model: Path,
    serve_engine: "ServeEngine",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 600.0)
    monkeypatch.setattr(engine, "_step_tokens", 200)
    allowed, step = threading.Semaphore(0), engine.step

    def gated() -> list[StepEvent]:
        return step() if allowed.acquire(timeout=STEP_SECONDS) else []

    monkeypatch.setattr(engine, "step", gated)

    async def scenario() -> None:
        async with serve_engine(engine, Tokenizer.from_folder(byte_model)) as serving:
            ticket = await serving.placed(LONG, max_tokens=2)
            dispatcher = await serving.dispatcher()
            await dispatcher.capacity(partial(waits, LONG))
            request = worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=[97] * LONG)
            call = serving.stub.Generate(request)
            await dispatcher.capacity(lambda report: report.running_sequences == 1)
            for left in (300, 100):  # the second step brings no token and starts nothing new
                allowed.release()
                await dispatcher.capacity(partial(waits, left))
            call.cancel()
            allowed.release(10)
            await serving.idle()

    asyncio.run(scenario())


@pytest.mark.parametrize("abruptly", [False, True], ids=["cancelled", "connection lost"])
def test_fifty_cuts_give_everything_back_in_time(
    engine: Engine,
    byte_model: Path,
    serve_engine: "ServeEngine",
    caplog: pytest.LogCaptureFixture,
    abruptly: bool,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serve_engine(engine, Tokenizer.from_folder(byte_model)) as serving:
            for number in range(1, CUTS + 1):
                before = engine.load().generated_tokens_total
                got = await cut(serving, abruptly=abruptly)
                await serving.idle(BACK_SECONDS)
                load = engine.load()
                assert load.cancelled_total == number
                assert load.generated_tokens_total - before <= got + MOST_TOKENS_AFTER_A_CUT

    asyncio.run(scenario())
    assert sum(line.startswith("cut ") for line in caplog.messages) == CUTS
    assert "Traceback" not in caplog.text
