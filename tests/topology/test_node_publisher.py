import asyncio
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crowfly import wire
from crowfly.store.interface import StoreError
from crowfly.v1 import topology_pb2
from crowfly_topology.publisher import Publisher
from crowfly_topology.record import FREE_STEP_BYTES

KEY = wire.NODES + "n"
FREE = 1 << 40


class Node:
    """What would be published, and the lease that it is published under."""

    def __init__(self) -> None:
        self.free_bytes = FREE
        self.store_answers = True
        self.puts: list[topology_pb2.NodeRecord] = []
        self.publisher = Publisher(self, KEY, self.compose)

    def compose(self, sequence: int, now: float) -> topology_pb2.NodeRecord:
        memory = topology_pb2.DeviceMemory(total_bytes=FREE, free_bytes=self.free_bytes)
        device = topology_pb2.Device(uuid="GPU-0", memory=memory)
        return topology_pb2.NodeRecord(node="n", sequence=sequence, devices=[device])

    async def put(self, key: str, value: bytes) -> None:
        assert key == KEY
        if not self.store_answers:
            raise StoreError("etcd at 127.0.0.1:1 does not answer")
        self.puts.append(topology_pb2.NodeRecord.FromString(value))

    async def revoke(self) -> None: ...

    def tick(self, tick: int) -> None:
        asyncio.run(self.publisher.tick(1000.0 + tick * wire.TICK_SECONDS))


@given(st.lists(st.integers(-FREE_STEP_BYTES, FREE_STEP_BYTES), min_size=1, max_size=60))
def test_the_published_record_is_never_old_and_never_far_from_the_node(moves: list[int]) -> None:
    node, put_at = Node(), []
    for tick, move in enumerate(moves):
        node.free_bytes += move
        before = len(node.puts)
        node.tick(tick)
        put_at += [tick] * (len(node.puts) - before)
        published = node.puts[-1].devices[0].memory.free_bytes
        assert abs(published - node.free_bytes) < FREE_STEP_BYTES
    assert [put.sequence for put in node.puts] == list(range(1, len(node.puts) + 1))
    for before, after in pairwise([*put_at, len(moves)]):
        assert (after - before) * wire.TICK_SECONDS <= wire.HEARTBEAT_SECONDS


def test_an_unchanged_node_is_published_once_a_heartbeat() -> None:
    node = Node()
    for tick in range(61):  # three heartbeats of twenty ticks
        node.tick(tick)
    assert len(node.puts) == 4


def test_an_outage_is_logged_once_and_publishing_goes_on_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    node = Node()
    node.tick(0)
    node.store_answers = False
    for tick in range(1, 60):
        node.free_bytes -= FREE_STEP_BYTES
        node.tick(tick)
    assert [message for *_, message in caplog.record_tuples] == [
        "this node is not published: etcd at 127.0.0.1:1 does not answer"
    ]
    node.store_answers = True
    for tick in range(60, 80):
        node.tick(tick)
    assert caplog.messages[1:] == ["this node is published again"]
    assert node.puts[-1].devices[0].memory.free_bytes == node.free_bytes
