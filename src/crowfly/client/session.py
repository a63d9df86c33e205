"""`AutoTuneSession`: ask a dispatcher for a place, then stream from the worker it names."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from crowfly import address, wire
from crowfly.client.channels import Channels
from crowfly.client.options import Deadline, Message, Options, Profile, check_options
from crowfly.client.requests import choice, place_request, sampling, token_ids
from crowfly.client.stream import Completion, Stream
from crowfly.client.tokenizers import TokenizerCache
from crowfly.errors import (
    CrowflyError,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    Unavailable,
    from_grpc,
)
from crowfly.v1 import dispatcher_pb2, dispatcher_pb2_grpc, worker_pb2, worker_pb2_grpc

Prompt = str | Sequence[int]
Encode = Callable[[dispatcher_pb2.ServedModel], Awaitable[list[int]]]
T = TypeVar("T")

_LIST_SECONDS = 5.0
_LIST_AGE_SECONDS = 5.0  # models come and go with their workers
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
        choice("tuning_profile", tuning_profile, wire.PROFILES)
        self._profile = tuning_profile
        self._channels = Channels()
        self._tokenizers = TokenizerCache(self._channels)
        self._served: dict[str, dispatcher_pb2.ServedModel] = {}
        self._listed_at: float | None = None

    async def models(self) -> list[dispatcher_pb2.ServedModel]:
        """What can be placed now."""
        try:
            answer = await self._dispatcher().ListModels(
                dispatcher_pb2.ListModelsRequest(), timeout=_LIST_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        self._served = {served.model.name: served for served in answer.models}
        self._listed_at = time.monotonic()
        return list(answer.models)

    async def wait_until_served(self, seconds: float, workers: int = 1) -> None:
        """Return when a model is served by so many workers. Raises `Unavailable` after
        `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if await self._most_workers_of_a_model() >= workers:
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{self._address}: no model served by {workers} workers within {seconds:g} s"
            ) from None

    async def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Continue `prompt`, a text or token ids."""
        check_options(options)

        async def encode(served: dispatcher_pb2.ServedModel) -> list[int]:
            if not isinstance(prompt, str):
                return token_ids(prompt, served.model.vocab_size)
            return _encoded("prompt", (await self._tokenizers.get(served)).encode, prompt)

        return await self._start(encode, options)

    async def stream_chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Stream:
        """Answer the last of `messages`, through the model's own chat template."""
        check_options(options)

        async def encode(served: dispatcher_pb2.ServedModel) -> list[int]:
            tokenizer = await self._tokenizers.get(served)
            return _encoded("messages", tokenizer.encode_chat, messages)

        return await self._start(encode, options)

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

    async def _start(self, encode: Encode, options: Options) -> Stream:
        """Everything up to the open stream, within the caller's timeout."""
        deadline = Deadline(options.get("timeout"))
        try:
            async with asyncio.timeout_at(deadline.at):
                served = await self._served_model(options.get("model"))
                ids = await encode(served)
                placement, placed_ms = await self._place(served, ids, options)
        except TimeoutError:
            raise DeadlineExceeded(f"not placed within timeout={deadline.seconds:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from error
        request = worker_pb2.GenerateRequest(
            ticket=placement.ticket, prompt_token_ids=ids, sampling=sampling(options)
        )
        worker = worker_pb2_grpc.WorkerServiceStub(self._channels.to(placement.worker_address))
        return Stream(worker.Generate(request, timeout=deadline.left()), placement, placed_ms)

    async def _place(
        self, served: dispatcher_pb2.ServedModel, ids: list[int], options: Options
    ) -> tuple[dispatcher_pb2.PlaceResponse, float]:
        """The placement, and how many ms the dispatcher took."""
        request = place_request(served.model.name, len(ids), self._profile, options)
        sampling(options)  # a bad value shall not cost a claim
        asked = time.monotonic()
        try:
            placement = await self._dispatcher().Place(request, timeout=_PLACE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._listed_at = None  # whatever it was, ask again what is served
            raise self._explained(error) from error
        return placement, (time.monotonic() - asked) * 1e3

    async def _served_model(self, name: str | None) -> dispatcher_pb2.ServedModel:
        await self._list_again_if_due(name)
        served = self._served
        if not served:
            raise Unavailable(f"{self._address}: no model is served now; try again")
        if name is None and len(served) > 1:
            raise InvalidRequest(f"model is needed: one of {', '.join(served)}")
        if name is not None and name not in served:
            raise ModelNotFound(f"model={name!r} is not served; these are: {', '.join(served)}")
        return served[next(iter(served)) if name is None else name]

    async def _list_again_if_due(self, name: str | None) -> None:
        unknown = name is not None and name not in self._served
        old = self._listed_at is None or time.monotonic() > self._listed_at + _LIST_AGE_SECONDS
        if old or unknown:
            await self.models()

    async def _most_workers_of_a_model(self) -> int:
        try:
            served = await self.models()
        except (Unavailable, DeadlineExceeded):
            return 0
        return max((len(each.worker_addresses) for each in served), default=0)

    def _dispatcher(self) -> "dispatcher_pb2_grpc.DispatcherServiceAsyncStub":
        return dispatcher_pb2_grpc.DispatcherServiceStub(self._channels.to(self._address))

    def _explained(self, error: grpc.aio.AioRpcError) -> CrowflyError:
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


def _encoded(field: str, encode: Callable[[T], list[int]], value: T) -> list[int]:
    try:
        ids = encode(value)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}") from error
    return ids
