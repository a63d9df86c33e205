from collections.abc import Callable

import pytest

from crowfly.v1 import common_pb2, topology_pb2
from crowfly_topology.record import FREE_STEP_BYTES, STALE_SECONDS, Agent, compose, differs
from crowfly_topology.reports import Reported
from crowfly_topology.sample import Identity, Kind, Memory, Reading, Unknown

AGENT = Agent(node="n", epoch="e", address="127.0.0.1:7")
GPU = Identity("GPU-1", Kind.CUDA, "a GPU")
HALF_FREE = Memory(total_bytes=1 << 30, free_bytes=1 << 29)
TAKEN_AT = 1000.0


def a_record(memory: Memory | Unknown = HALF_FREE, age: float = 0.02) -> topology_pb2.NodeRecord:
    """At `age` after the device was read; the worker's report came 0.1 s before that."""
    report = common_pb2.WorkerReport(worker_id="w", epoch="e", sequence=3, free_pages=9)
    return compose(
        AGENT,
        5,
        [Reading(GPU, memory, TAKEN_AT)],
        [Reported(report, TAKEN_AT - 0.1, stream=1)],
        TAKEN_AT + age,
    )


def test_a_record_holds_devices_and_workers_with_their_ages() -> None:
    record = a_record()
    assert (record.node, record.epoch, record.sequence) == ("n", "e", 5)
    assert record.agent_address == "127.0.0.1:7"
    (device,) = record.devices
    assert (device.uuid, device.name) == ("GPU-1", "a GPU")
    assert device.kind == topology_pb2.DEVICE_KIND_CUDA
    assert (device.memory.total_bytes, device.memory.free_bytes) == (1 << 30, 1 << 29)
    assert device.memory.age_ms == 20
    (worker,) = record.workers
    assert (worker.report.worker_id, worker.report.sequence, worker.age_ms) == ("w", 3, 120)


def test_unknown_memory_is_absent_with_its_reason() -> None:
    (device,) = a_record(Unknown("GPU is lost")).devices
    assert not device.HasField("memory")
    assert device.memory_unknown_reason == "GPU is lost"


def test_a_device_without_memory_left_is_known() -> None:
    (device,) = a_record(Memory(total_bytes=1 << 30, free_bytes=0)).devices
    assert device.HasField("memory")
    assert device.memory.free_bytes == 0


def test_an_old_value_is_unknown() -> None:
    assert a_record(age=STALE_SECONDS - 0.001).devices[0].HasField("memory")
    (device,) = a_record(age=STALE_SECONDS + 0.001).devices
    assert not device.HasField("memory")
    assert device.memory_unknown_reason == "no answer for over 500 ms"


def test_ages_sequences_totals_and_small_moves_of_free_memory_make_no_difference() -> None:
    fresh = a_record(Memory(1 << 30, (1 << 29) - FREE_STEP_BYTES + 1), age=0.04)
    fresh.sequence += 1
    fresh.workers[0].report.sequence += 1
    fresh.workers[0].report.prefilled_tokens_total += 1
    fresh.workers[0].report.generated_tokens_total += 1
    fresh.workers[0].report.cancelled_total += 1
    assert not differs(a_record(), fresh)


def _pages(record: topology_pb2.NodeRecord) -> None:
    record.workers[0].report.free_pages -= 1


def _zero_rate(record: topology_pb2.NodeRecord) -> None:
    record.workers[0].report.prefill_tokens_per_s = 0.0


def _draining(record: topology_pb2.NodeRecord) -> None:
    record.workers[0].report.draining = True


def _worker_gone(record: topology_pb2.NodeRecord) -> None:
    del record.workers[0]


def _device_gone(record: topology_pb2.NodeRecord) -> None:
    del record.devices[0]


def _memory_unknown(record: topology_pb2.NodeRecord) -> None:
    record.devices[0].ClearField("memory")


def _less_free(record: topology_pb2.NodeRecord) -> None:
    record.devices[0].memory.free_bytes -= FREE_STEP_BYTES


def _less_total(record: topology_pb2.NodeRecord) -> None:
    record.devices[0].memory.total_bytes -= 1


@pytest.mark.parametrize(
    "move",
    [
        _pages,
        _zero_rate,
        _draining,
        _worker_gone,
        _device_gone,
        _memory_unknown,
        _less_free,
        _less_total,
    ],
)
def test_what_a_placement_depends_on_makes_a_difference(
    move: Callable[[topology_pb2.NodeRecord], None],
) -> None:
    fresh = a_record()
    move(fresh)
    assert differs(a_record(), fresh)
    assert differs(fresh, a_record())
