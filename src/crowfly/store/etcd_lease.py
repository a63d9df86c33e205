"""A lease on etcd that comes back: kept alive, granted again, its keys put again."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

import grpc

from crowfly.store.background import end
from crowfly.store.backoff import Backoff
from crowfly.store.etcd_keys import encode_key
from crowfly.store.etcd_members import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_MOST_SECONDS,
    CALL_SECONDS,
    WRITE,
    CallFailed,
    Members,
)
from crowfly.store.etcd_pb2 import (
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    PutRequest,
)
from crowfly.store.interface import StoreError

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]  # with a name

REVOKE_SECONDS = 1.0


class EtcdLease:
    """`begin` it once; then it looks after itself until `revoke` or until its task is cancelled."""

    def __init__(self, members: Members, seconds: int) -> None:
        self._members = members
        self._seconds = seconds
        self._id: int | None = None  # None: not granted, or lost
        self._values: dict[str, bytes] = {}
        self._unsaved: set[str] = set()  # keys whose newest value etcd may not have
        self._saving = asyncio.Lock()  # puts of one lease never overtake each other
        self._due = asyncio.Event()  # something to repair at once
        self._backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS)
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self, spawn: Spawn) -> None:
        """One try to be granted now; from then on in the background."""
        await self._try_refresh()
        self._keeper = spawn(self._keep(), "the keeper of a lease")

    async def put(self, key: str, value: bytes) -> None:
        if self._keeper is None or self._keeper.done():
            raise StoreError(f"the lease for {key} was revoked")
        self._values[key] = value
        self._unsaved.add(key)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._save(key)
        except TimeoutError:
            raise StoreError(f"etcd did not take {key} within {CALL_SECONDS:g} s") from None
        finally:
            if key in self._unsaved:  # perhaps the lease is lost: look now, not at the next beat
                self._due.set()

    async def revoke(self) -> None:
        if self._keeper is not None:
            await end((self._keeper,))
        if self._id is None:
            return
        request, self._id = LeaseRevokeRequest(ID=self._id), None  # a second call finds none
        try:
            async with asyncio.timeout(REVOKE_SECONDS):
                await self._members.call(lambda member: member.lease.LeaseRevoke, request, WRITE)
        except (StoreError, TimeoutError) as error:
            log.info("lease %x is left to end by itself: %s", request.ID, str(error) or "no answer")

    async def _keep(self) -> None:
        while True:
            await self._until_due()
            await self._try_refresh()

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(self._seconds / 3):
                await self._due.wait()
        except TimeoutError:
            pass
        self._due.clear()

    async def _try_refresh(self) -> None:
        try:
            await self._refresh()
        except StoreError as error:
            log.debug("lease: %s", error)
            self._due.set()
            await asyncio.sleep(self._backoff.next())
        else:
            self._backoff.reset()

    async def _refresh(self) -> None:
        """Alive, and every newest value is saved; or `StoreError`."""
        if self._id is None or not await self._is_alive(self._id):
            await self._grant()
        for key in tuple(self._unsaved):
            await self._save(key)

    async def _is_alive(self, lease: int) -> bool:
        """Prolongs the lease."""
        async with self._members.stream(
            lambda member: member.lease.LeaseKeepAlive,
            iter([LeaseKeepAliveRequest(ID=lease)]),
            silence=CALL_SECONDS,
        ) as answers:
            try:
                return (await answers.next()).TTL > 0
            except CallFailed as error:
                if error.code is grpc.StatusCode.NOT_FOUND:
                    return False
                raise

    async def _grant(self) -> None:
        self._id = None
        request = LeaseGrantRequest(TTL=self._seconds)
        answer = await self._members.call(lambda member: member.lease.LeaseGrant, request, WRITE)
        self._id = answer.ID
        self._unsaved.update(self._values)
        if self._values:
            log.info("a lease is granted: %d keys to put", len(self._values))

    async def _save(self, key: str) -> None:
        async with self._saving:
            lease, value = self._id, self._values[key]
            if lease is None:
                raise StoreError(f"etcd has granted no lease yet for {key}: it does not answer")
            request = PutRequest(key=encode_key(key), value=value, lease=lease)
            await self._members.call(lambda member: member.kv.Put, request, WRITE)
            if self._id == lease and self._values[key] is value:
                self._unsaved.discard(key)
