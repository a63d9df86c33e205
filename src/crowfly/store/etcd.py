"""The store on etcd v3 (3.4 or newer), over its public gRPC interface."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping

from crowfly.store.background import begin, end
from crowfly.store.etcd_keys import decode_key, encode_key, prefix_end
from crowfly.store.etcd_lease import EtcdLease
from crowfly.store.etcd_members import READ, TRANSACTION, WRITE, Members, parse_endpoints
from crowfly.store.etcd_pb2 import (
    Compare,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from crowfly.store.etcd_watch import EtcdWatch
from crowfly.store.interface import WatchEvent
from crowfly.store.mailbox import Mailbox


class EtcdStore:
    """Belongs to the event loop that it was made in. Raises `ValueError` for bad endpoints."""

    def __init__(self, endpoints: str) -> None:
        self._members = Members(parse_endpoints(endpoints))
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, prefix: str) -> Mapping[str, bytes]:
        request = RangeRequest(key=encode_key(prefix), range_end=prefix_end(prefix))
        answer = await self._members.call(lambda member: member.kv.Range, request, READ)
        return {decode_key(kv.key): kv.value for kv in answer.kvs}

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        mailbox = Mailbox()
        task = self._spawn(
            EtcdWatch(self._members, prefix, mailbox).run(), f"the watch of {prefix}"
        )
        task.add_done_callback(lambda _: mailbox.close())
        try:
            while (event := await mailbox.next()) is not None:
                yield event
            if not task.cancelled():
                task.result()  # a fault of ours is raised here
        finally:
            await end((task,))

    async def put(self, key: str, value: bytes) -> None:
        request = PutRequest(key=encode_key(key), value=value)
        await self._members.call(lambda member: member.kv.Put, request, WRITE)

    async def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        # The transaction is never sent to a second member; the read finds one that answers.
        question = RangeRequest(key=encode_key(key))
        await self._members.call(lambda member: member.kv.Range, question, READ)
        request = TxnRequest(compare=[_is(key, old)], success=[_set(key, new)])
        answer = await self._members.call(lambda member: member.kv.Txn, request, TRANSACTION)
        return answer.succeeded

    async def lease(self, seconds: int) -> EtcdLease:
        lease = EtcdLease(self._members, seconds)
        await lease.begin(self._spawn)
        return lease

    async def close(self) -> None:
        await end(tuple(self._tasks))
        await self._members.close()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = begin(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is(key: str, value: bytes | None) -> Compare:
    if value is None:
        return Compare(target=Compare.CREATE, key=encode_key(key), create_revision=0)
    return Compare(target=Compare.VALUE, key=encode_key(key), value=value)


def _set(key: str, value: bytes | None) -> RequestOp:
    if value is None:
        return RequestOp(request_delete_range=DeleteRangeRequest(key=encode_key(key)))
    return RequestOp(request_put=PutRequest(key=encode_key(key), value=value))
