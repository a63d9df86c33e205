"""The worker's RPCs."""

from collections.abc import AsyncIterator, Callable

import grpc

from crowfly.ended_call import ended_call_is_cancelled
from crowfly.errors import errors_as_status
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import worker_pb2, worker_pb2_grpc
from crowfly_worker import streams
from crowfly_worker.control import Control, Write
from crowfly_worker.streams import Streams

ControlContext = grpc.aio.ServicerContext[worker_pb2.ControlRequest, worker_pb2.ControlResponse]


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """The streaming RPCs write to their context instead of yielding: a generator's cleanup would
    wait for the garbage collector when its call is cancelled."""

    def __init__(
        self, streams: Streams, control: Callable[[Write], Control], tokenizer: Tokenizer
    ) -> None:
        self._streams = streams
        self._control = control
        self._tokenizer = tokenizer

    async def Control(  # type: ignore[override]  # see above
        self, requests: AsyncIterator[worker_pb2.ControlRequest], context: ControlContext
    ) -> None:
        async def write(response: worker_pb2.ControlResponse) -> None:
            with ended_call_is_cancelled():
                await context.write(response)

        async with errors_as_status(context):
            await self._control(write).run(requests)

    async def Generate(  # type: ignore[override]  # see above
        self, request: worker_pb2.GenerateRequest, context: streams.Context
    ) -> None:
        async with errors_as_status(context):
            await self._streams.generate(request, context)

    async def GetTokenizer(
        self, request: worker_pb2.GetTokenizerRequest, context: object
    ) -> worker_pb2.GetTokenizerResponse:
        return worker_pb2.GetTokenizerResponse(
            tokenizer_json=self._tokenizer.tokenizer_json,
            tokenizer_config_json=self._tokenizer.config_json,
        )
