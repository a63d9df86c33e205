"""The members of an etcd cluster: which one is asked, and every failure as a `StoreError`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar, cast

import grpc
import grpc.aio

from crowfly import address, wire
from crowfly.address import Address
from crowfly.cancellation import asked_to_stop
from crowfly.store.etcd_pb2_grpc import KVStub, LeaseStub, WatchStub
from crowfly.store.interface import StoreError

Request = TypeVar("Request")
Response = TypeVar("Response")

CALL_SECONDS = 2.0  # every unary call, over all the members that it tries

# Of a watch or a lease whose store is away; as often as gRPC itself connects again.
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MOST_SECONDS = 1.0

_CHANNEL_OPTIONS = tuple(
    {
        **dict(wire.CHANNEL_OPTIONS),
        # The default of 4 MiB is 250 node records of 16 KiB; a list of 1,000 nodes must fit.
        "grpc.max_receive_message_length": 64 << 20,
        # etcd allows no pings without calls: it answers the third with GOAWAY too_many_pings.
        "grpc.keepalive_permit_without_calls": 0,
        # Also the time to connect in. Less than `CALL_SECONDS`, so that a call that meets a silent
        # member fails as unavailable while there is time for another.
        "grpc.min_reconnect_backoff_ms": 1_000,
    }.items()
)

# After which failures of one member a call is sent to another. A member that was frozen may still
# carry out a write that it read before, over a newer one; a transaction must never happen twice.
READ = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
WRITE = frozenset((grpc.StatusCode.UNAVAILABLE,))
TRANSACTION: frozenset[grpc.StatusCode] = frozenset()


class CallFailed(StoreError):
    """A member refused, or could not be reached."""

    def __init__(self, endpoint: Address, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"etcd at {endpoint}: {error.code().name}: {error.details()}")
        self.code = error.code()


def parse_endpoints(text: str) -> list[Address]:
    """`host:port` or `http://host:port`, separated by commas.

    Raises `ValueError` that says what is wrong with `text`.
    """
    return [_parse_endpoint(part.strip()) for part in text.split(",")]


def _parse_endpoint(text: str) -> Address:
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme != "http":
        raise ValueError(
            f"{text!r}: only plain etcd endpoints are supported (host:port or http://host:port), "
            "without TLS and authentication"
        )
    return address.parse(rest.removesuffix("/"))


class Member:
    """One channel; it connects at the first call."""

    def __init__(self, endpoint: Address) -> None:
        self.endpoint = endpoint
        self.channel = grpc.aio.insecure_channel(str(endpoint), options=_CHANNEL_OPTIONS)
        self.kv = KVStub(self.channel)
        self.watch = WatchStub(self.channel)
        self.lease = LeaseStub(self.channel)


class Answers(Generic[Request, Response]):
    """The receiving half of a stream."""

    def __init__(
        self,
        endpoint: Address,
        call: grpc.aio.StreamStreamCall[Request, Response],
        silence: float,
    ) -> None:
        self._endpoint = endpoint
        self._call = call
        self._silence = silence

    async def next(self) -> Response:
        """Raises `StoreError` if the stream breaks, ends, or stays silent for too long."""
        try:
            return await self._read()
        finally:
            if asked_to_stop():  # grpc.aio loses a cancellation that meets a stream's own end
                raise asyncio.CancelledError

    def failure(self, reason: str) -> StoreError:
        return StoreError(f"etcd at {self._endpoint}: {reason}")

    async def _read(self) -> Response:
        try:
            async with asyncio.timeout(self._silence):
                answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise CallFailed(self._endpoint, error) from error
        except TimeoutError:
            raise self.failure(f"no answer for {self._silence:g} s") from None
        if answer is grpc.aio.EOF:
            raise self.failure("the stream ended")
        return cast(Response, answer)


class Members:
    """Everybody asks the same member, until it fails: then the next."""

    def __init__(self, endpoints: list[Address]) -> None:
        self._members = [Member(endpoint) for endpoint in endpoints]

    async def call(
        self,
        method: Callable[[Member], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        again_after: frozenset[grpc.StatusCode],
    ) -> Response:
        """Ask one member, and the next ones after the failures in `again_after`.

        Raises `CallFailed` within `CALL_SECONDS`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALL_SECONDS
        for left in range(len(self._members), 0, -1):
            member = self._members[0]
            shares = left if grpc.StatusCode.DEADLINE_EXCEEDED in again_after else 1
            try:
                return await method(member)(request, timeout=(deadline - loop.time()) / shares)
            except grpc.aio.AioRpcError as error:
                failed = CallFailed(member.endpoint, error)
            if failed.code in READ:
                self._leave(member)
            if failed.code not in again_after:
                break
        raise failed

    @asynccontextmanager
    async def stream(
        self,
        method: Callable[[Member], grpc.aio.StreamStreamMultiCallable[Request, Response]],
        requests: AsyncIterator[Request] | Iterator[Request],
        *,
        silence: float,
    ) -> AsyncGenerator[Answers[Request, Response], None]:
        """An open stream, cancelled at the end. Inside, `StoreError` is raised when it breaks or
        when the member says nothing for `silence` seconds."""
        member = self._members[0]
        # Without `hasleader` a member that is cut off from the others keeps a stream open.
        call = method(member)(requests, metadata=(("hasleader", "true"),))
        try:
            yield Answers(member.endpoint, call, silence)
        except StoreError:
            self._leave(member)
            raise
        finally:
            call.cancel()

    async def close(self) -> None:
        for member in self._members:
            await member.channel.close()

    def _leave(self, member: Member) -> None:
        """Ask another from now on, unless somebody else has left `member` already."""
        if self._members[0] is member:
            self._members = [*self._members[1:], member]
