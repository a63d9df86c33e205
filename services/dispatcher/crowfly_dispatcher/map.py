"""Follows the store: who serves, and what the nodes' agents measured.

While the store is away the last map stays in use, and the links to the workers go on.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from crowfly import wire
from crowfly.store import Change, Lost, Snapshot, Store, WatchEvent
from crowfly.v1 import topology_pb2, worker_pb2
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.links import Links

log = logging.getLogger(__name__)

WATCHED = (wire.WORKERS, wire.NODES)
DROP_SECONDS = 0.5  # between two looks for workers whose time has run out: a tenth of that time


async def follow(store: Store, cluster: Cluster, links: Links) -> None:
    """Until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_follow_workers(store, cluster, links))
        group.create_task(_follow_nodes(store, cluster))
        group.create_task(_drop_unlisted(cluster, links))


async def _follow_workers(store: Store, cluster: Cluster, links: Links) -> None:
    async for event in store.watch(wire.WORKERS):
        _hear_store(cluster, wire.WORKERS, event)
        for key, value in _changes(event, (wire.WORKERS + facts.id for facts in cluster.facts())):
            if value is None:
                cluster.unlisted(_name(key, wire.WORKERS), time.monotonic())
            else:
                _worker_joined(cluster, key, value)
        links.follow(cluster.facts())


async def _follow_nodes(store: Store, cluster: Cluster) -> None:
    async for event in store.watch(wire.NODES):
        _hear_store(cluster, wire.NODES, event)
        for key, value in _changes(
            event, (wire.NODES + node.record.node for node in cluster.nodes)
        ):
            if value is None:
                cluster.node_left(_name(key, wire.NODES))
            else:
                _node_heard(cluster, key, value)


async def _drop_unlisted(cluster: Cluster, links: Links) -> None:
    while True:
        await asyncio.sleep(DROP_SECONDS)
        cluster.drop_unlisted(time.monotonic())
        links.follow(cluster.facts())


def _changes(event: WatchEvent, known: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    """Key by key, with None for those that are gone: after a list, all `known` ones not in it."""
    if isinstance(event, Change):
        yield event.key, event.value
    elif isinstance(event, Snapshot):
        yield from ((key, None) for key in set(known) - event.items.keys())
        yield from event.items.items()


def _hear_store(cluster: Cluster, prefix: str, event: WatchEvent) -> None:
    if isinstance(event, Lost):
        cluster.store_lost(prefix)
        log.warning("%s: the store is away, the last map stays: %s", prefix, event.reason)
    elif cluster.store_answers(prefix):
        log.info("%s: the store answers", prefix)


def _worker_joined(cluster: Cluster, key: str, value: bytes) -> None:
    """A record that cannot be used harms nobody else."""
    try:
        registration = worker_pb2.WorkerRegistration.FromString(value)
        if registration.worker_id != _name(key, wire.WORKERS):
            raise ValueError(f"it is of worker {registration.worker_id!r}")
        cluster.joined(registration)
    except (DecodeError, ValueError) as error:
        log.warning("the record %s cannot be used: %s", key, error)


def _node_heard(cluster: Cluster, key: str, value: bytes) -> None:
    try:
        record = topology_pb2.NodeRecord.FromString(value)
        if record.node != _name(key, wire.NODES):
            raise ValueError(f"it is of node {record.node!r}")
        cluster.node_heard(record, time.monotonic())
    except (DecodeError, ValueError) as error:
        log.warning("the record %s cannot be used: %s", key, error)


def _name(key: str, prefix: str) -> str:
    return key.removeprefix(prefix)
