"""A call that has ended when its status is sent is one line in the log."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import grpc
import pytest

from crowfly.ended_call import shorten_ended_calls
from crowfly.v1 import worker_pb2, worker_pb2_grpc
from crowfly_worker.server import WorkerService
from crowfly_worker.streams import Context

# Without the probe it does not grow.
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
STALLED_SECONDS = 0.2
WAIT_SECONDS = 20.0


@pytest.fixture
def shortened() -> Iterator[None]:
    logger = logging.getLogger("grpc._cython.cygrpc")
    before = list(logger.filters)
    shorten_ended_calls()
    yield
    for added in set(logger.filters) - set(before):
        logger.removeFilter(added)


class Full(WorkerService):
    """Fills its caller's window and returns, so that the status waits behind what is not read."""

    def __init__(self) -> None:
        self.returns = asyncio.Event()

    async def Generate(  # type: ignore[override]  # as the one that it replaces
        self, request: worker_pb2.GenerateRequest, context: Context
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STALLED_SECONDS):
                while True:
                    await context.write(worker_pb2.GenerateResponse(text="x" * 1000))
        self.returns.set()


@pytest.mark.usefixtures("shortened")
def test_it_is_one_line_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        full, server = Full(), grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(full, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=SMALL_WINDOW) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            call = stub.Generate(worker_pb2.GenerateRequest())
            await anext(aiter(call))
            async with asyncio.timeout(WAIT_SECONDS):
                await full.returns.wait()  # then the caller's connection ends
        await server.stop(None)

    asyncio.run(scenario())
    assert caplog.messages == ["a caller left while its call's status was on its way"]
    assert "Traceback" not in caplog.text
