"""The wire around the real engine: callers who leave cost nothing."""

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly.tokenizer import Tokenizer
from crowfly.v1 import worker_pb2
from crowfly_worker.engine.build import load_engine
from crowfly_worker.engine.port import Engine, StepEvent

if TYPE_CHECKING:
    from tests.worker.wire.conftest import ServeEngine, Serving

CUTS = 50
BACK_SECONDS = 0.5
MOST_TOKENS_AFTER_A_CUT = 3
STEP_SECONDS = 0.02  # the tiny model alone makes a token per millisecond, faster than a cut
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
