"""`AutoTuneSession`: ask a dispatcher for a place, then stream from the worker it names."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

import grpc

from crowfly import address, wire
from crowfly.client.channels import Channels
from crowfly.client.options import Message, Options, Profile, assign, choice, token_ids
from crowfly.client.stream import Completion, Stream
from crowfly.client.tokenizers import TokenizerCache
from crowfly.errors import InvalidRequest, ModelNotFound, Unavailable, from_grpc
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import dispatcher_pb2, dispatcher_pb2_grpc, worker_pb2, worker_pb2_grpc

Prompt = str | Sequence[int]
_LIST_SECONDS = 5.0
_PLACE_SECONDS = 10.0  # the dispatcher's own tries end well before
_POLL_SECONDS = 0.1


class AutoTuneSession:
    """A caller's side of the cluster. Use it as `async with`.

    >>> async with AutoTuneSession() as session:
    ...     async with await session.stream("The capital of France is") as stream:
    ...         async for delta in stream:
    ...             print(delta.text, end="")

    `tuning_profile` says what each placement minimises: the time to the first token, the time to
    the whole answer, or the memory left in pieces. All methods raise `CrowflyError`s.
    """

    def __init__(
        self,
        dispatcher: str = wire.DISPATCHER,
        *,
        tuning_profile: Profile = "latency_optimized",
    ) -> None:
        try:
            self._address = str(address.parse(dispatcher))
        except ValueError as error:
            raise InvalidRequest(f"dispatcher: {error}") from None
        self._profile = choice("tuning_profile", tuning_profile, wire.PROFILES)
        self._channels = Channels()
        self._tokenizers = TokenizerCache(self._channels)
        self._served: dict[str, dispatcher_pb2.ServedModel] = {}

    async def models(self) -> list[dispatcher_pb2.ServedModel]:
        """What can be placed now."""
        try:
            answer = await self._dispatcher().ListModels(
                dispatcher_pb2.ListModelsRequest(), timeout=_LIST_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error) from error
        self._served = {served.model.name: served for served in answer.models}
        return list(answer.models)

    async def wait_until_served(self, seconds: float) -> None:
        """Return when at least one model can be placed. Raises `Unavailable` after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if await self._try_models():
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise Unavailable(f"{self._address}: no model served within {seconds:g} s") from None

    async def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Continue `prompt`, a text or token ids."""
        served = await self._model(options.get("model"))
        if isinstance(prompt, str):
            ids = (await self._tokenizer(served)).encode(prompt)
        else:
            ids = token_ids(prompt, served.model.vocab_size)
        return await self._start(served, ids, options)

    async def stream_chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Stream:
        """Answer the last of `messages`, through the model's own chat template."""
        served = await self._model(options.get("model"))
        try:
            ids = (await self._tokenizer(served)).encode_chat(messages)
        except ValueError as error:
            raise InvalidRequest(f"messages: {error}") from error
        return await self._start(served, ids, options)

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """`stream`, collected."""
        async with await self.stream(prompt, **options) as stream:
            return await stream.collect()

    async def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Completion:
        """`stream_chat`, collected."""
        async with await self.stream_chat(messages, **options) as stream:
            return await stream.collect()

    async def close(self) -> None:
        await self._channels.close()

    async def _start(
        self, served: dispatcher_pb2.ServedModel, ids: list[int], options: Options
    ) -> Stream:
        if not ids:
            raise InvalidRequest("prompt is empty: it needs at least one token")
        timeout = options.get("timeout")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        request = self._place_request(served, len(ids), options)
        generate = worker_pb2.GenerateRequest(prompt_token_ids=ids, sampling=_sampling(options))
        place_seconds = _PLACE_SECONDS if timeout is None else min(_PLACE_SECONDS, timeout)
        asked = loop.time()
        try:
            placement = await self._dispatcher().Place(request, timeout=place_seconds)
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error) from error
        generate.ticket = placement.ticket
        worker = worker_pb2_grpc.WorkerServiceStub(self._channels.to(placement.worker_address))
        answered = loop.time()
        left = None if deadline is None else deadline - answered
        call = worker.Generate(generate, timeout=left)
        return Stream(call, placement, placed_ms=(answered - asked) * 1e3)

    def _place_request(
        self, served: dispatcher_pb2.ServedModel, prompt_tokens: int, options: Options
    ) -> dispatcher_pb2.PlaceRequest:
        request = dispatcher_pb2.PlaceRequest(model=served.model.name, prompt_tokens=prompt_tokens)
        assign(
            request,
            max_tokens=options.get("max_tokens"),
            request_id=options.get("request_id"),
            tuning_profile=self._profile,
            precision=choice("precision", options.get("precision"), wire.PRECISIONS),
            kernel_hint=choice("kernel_hint", options.get("kernel_hint"), wire.KERNELS),
        )
        return request

    async def _model(self, name: str | None) -> dispatcher_pb2.ServedModel:
        if not self._served or (name is not None and name not in self._served):
            await self.models()
        if not self._served:
            raise Unavailable(f"{self._address}: no model is served now; try again")
        if name is None and len(self._served) > 1:
            raise InvalidRequest(f"model is needed: one of {', '.join(self._served)}")
        if name is not None and name not in self._served:
            raise ModelNotFound(f"model={name!r} is not served: {', '.join(self._served)} is")
        return next(iter(self._served.values())) if name is None else self._served[name]

    async def _tokenizer(self, served: dispatcher_pb2.ServedModel) -> Tokenizer:
        try:
            return await self._tokenizers.get(served)
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from error

    async def _try_models(self) -> bool:
        try:
            return bool(await self.models())
        except Unavailable:
            return False

    def _dispatcher(self) -> "dispatcher_pb2_grpc.DispatcherServiceAsyncStub":
        return dispatcher_pb2_grpc.DispatcherServiceStub(self._channels.to(self._address))

    def _unreachable(self, error: grpc.aio.AioRpcError) -> Exception:
        known = from_grpc(error)
        if isinstance(known, Unavailable):
            return Unavailable(f"dispatcher {self._address}: {known}")
        return known

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _sampling(options: Options) -> worker_pb2.Sampling:
    sampling = worker_pb2.Sampling()
    assign(
        sampling,
        temperature=options.get("temperature"),
        top_k=options.get("top_k"),
        top_p=options.get("top_p"),
        seed=options.get("seed"),
    )
    return sampling
