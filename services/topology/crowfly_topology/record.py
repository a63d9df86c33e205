"""From readings and reports to the node's record, and whether two records differ."""

from collections.abc import Iterable
from dataclasses import dataclass

from crowfly import wire
from crowfly.v1 import topology_pb2
from crowfly_topology.reports import Reported
from crowfly_topology.sample import Kind, Memory, Reading, Unknown

# Ten ticks without an answer: the device hangs, and its last value says nothing of now.
STALE_SECONDS = 10 * wire.TICK_SECONDS
# A smaller move of free memory changes no placement, and a busy host makes one at every tick.
FREE_STEP_BYTES = 16 << 20

_KINDS = {Kind.CPU: topology_pb2.DEVICE_KIND_CPU, Kind.CUDA: topology_pb2.DEVICE_KIND_CUDA}


@dataclass(frozen=True, slots=True)
class Agent:
    """Who publishes."""

    node: str
    epoch: str
    address: str


def compose(
    agent: Agent,
    sequence: int,
    readings: Iterable[Reading],
    reports: Iterable[Reported],
    now: float,
) -> topology_pb2.NodeRecord:
    """`now` is time.monotonic(); every age counts up to it."""
    return topology_pb2.NodeRecord(
        node=agent.node,
        epoch=agent.epoch,
        sequence=sequence,
        agent_address=agent.address,
        devices=[_device(reading, now) for reading in readings],
        workers=[
            topology_pb2.ReportedWorker(
                report=reported.report, age_ms=_age_ms(reported.arrived_at, now)
            )
            for reported in reports
        ],
    )


def differs(published: topology_pb2.NodeRecord, fresh: topology_pb2.NodeRecord) -> bool:
    """Whether a value that a placement depends on has moved; ages, sequences and totals do not
    count."""
    return _facts(published) != _facts(fresh) or any(
        abs(before.memory.free_bytes - after.memory.free_bytes) >= FREE_STEP_BYTES
        for before, after in zip(published.devices, fresh.devices, strict=True)
    )


def _device(reading: Reading, now: float) -> topology_pb2.Device:
    identity = reading.identity
    device = topology_pb2.Device(uuid=identity.uuid, kind=_KINDS[identity.kind], name=identity.name)
    match _memory(reading, now):
        case Memory(total_bytes, free_bytes):
            device.memory.total_bytes = total_bytes
            device.memory.free_bytes = free_bytes
            device.memory.age_ms = _age_ms(reading.taken_at, now)
        case Unknown(reason):
            device.memory_unknown_reason = reason
    return device


def _memory(reading: Reading, now: float) -> Memory | Unknown:
    if now - reading.taken_at > STALE_SECONDS:
        return Unknown(f"no answer for over {STALE_SECONDS * 1000:.0f} ms")
    return reading.memory


def _age_ms(since: float, now: float) -> int:
    return max(0, round((now - since) * 1000))


def _facts(record: topology_pb2.NodeRecord) -> topology_pb2.NodeRecord:
    facts = topology_pb2.NodeRecord()
    facts.CopyFrom(record)
    facts.ClearField("sequence")
    for device in facts.devices:
        if device.HasField("memory"):
            device.memory.ClearField("free_bytes")
            device.memory.ClearField("age_ms")
    for worker in facts.workers:
        worker.ClearField("age_ms")
        worker.report.ClearField("sequence")
        worker.report.ClearField("prefilled_tokens_total")
        worker.report.ClearField("generated_tokens_total")
        worker.report.ClearField("cancelled_total")
    return facts
