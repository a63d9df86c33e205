"""A caller that stops reading, with its window full, is cut off in time and harms nobody."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly.v1 import worker_pb2
from crowfly_worker.streams import Streams

if TYPE_CHECKING:
    from tests.worker.wire.conftest import Served, ServeScripted

PROMPT = [7, 7, 7, 96]
MAX_TOKENS = 196
# The window holds some 80 of the answer's 196 messages; without the probe it does not grow.
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
SHORT_SECONDS = 0.2

Call = grpc.aio.UnaryStreamCall[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]


@asynccontextmanager
async def unread(
    served: "Served", made: int = MAX_TOKENS, seconds: float | None = None
) -> AsyncIterator[Call]:
    """An answer of which the engine makes `made` tokens, and the caller has read the first."""
    ticket = await served.placed(len(PROMPT), MAX_TOKENS)
    address = served.worker.registration.address
    async with grpc.aio.insecure_channel(address, options=SMALL_WINDOW) as channel:
        request = worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=PROMPT)
        call = type(served.stub)(channel).Generate(request, timeout=seconds)
        served.engine.allow(1)
        await anext(aiter(call))
        served.engine.allow(made - 1)
        yield call


def cuts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("cut ")]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits for a caller for `SHORT_SECONDS`."""
    streams = partial(Streams, write_seconds=SHORT_SECONDS)
    monkeypatch.setattr("crowfly_worker.worker.Streams", streams)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("made", "cancelled"), [(150, 1), (MAX_TOKENS, 0)])
def test_it_is_cut_off_with_a_typed_error_and_its_pages_come_back(
    serve_scripted: "ServeScripted", caplog: pytest.LogCaptureFixture, made: int, cancelled: int
) -> None:
    """Whether or not the engine has made the whole answer by then."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serve_scripted() as served, unread(served, made) as call:
            await served.idle()  # though the caller has not left
            assert served.engine.load().cancelled_total == cancelled
            assert not call.done()
            (cut,) = cuts(caplog)
            assert cut.endswith(" tokens: the caller did not read for 0.2 s")
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                async for _ in call:  # what was on its way comes first
                    pass
            assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert ended.value.details() == "the caller did not read for 0.2 s"

    asyncio.run(scenario())
    assert "Traceback" not in caplog.text


@pytest.mark.usefixtures("hasty")
def test_one_that_leaves_after_its_cut_leaves_no_trace(
    serve_scripted: "ServeScripted", caplog: pytest.LogCaptureFixture
) -> None:
    """The final status is on its way then, behind what was never read."""

    async def scenario() -> None:
        async with serve_scripted() as served, unread(served):
            await served.idle()

    asyncio.run(scenario())
    assert not caplog.records


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("deadline", "its deadline passed"),
        ("cancel", "the caller left"),
        ("connection", "the caller left"),
    ],
)
def test_a_call_that_ends_under_a_write_is_one_line(
    serve_scripted: "ServeScripted", caplog: pytest.LogCaptureFixture, how: str, cause: str
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serve_scripted() as served:
            seconds = 2.0 if how == "deadline" else None
            async with unread(served, seconds=seconds) as call:
                await served.eventually(lambda: not served.engine.load().running)
                if how == "cancel":
                    call.cancel()
                elif how == "deadline":
                    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await served.idle()

    asyncio.run(scenario())
    (cut,) = cuts(caplog)
    assert cut.endswith(f" tokens: {cause}")
    assert "Traceback" not in caplog.text
