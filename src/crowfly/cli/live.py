"""What serves now: the store, the dispatcher, and all that the dispatcher knows."""

import grpc

from crowfly import address, wire
from crowfly.cli.finding import Finding, Verdict
from crowfly.store import StoreError, open_store
from crowfly.v1 import dispatcher_pb2, dispatcher_pb2_grpc, topology_pb2

_CALL_SECONDS = 2.0


async def examine_cluster(store: str, dispatcher: str) -> list[Finding]:
    return [await _store(store), *await _cluster(dispatcher)]


async def _store(endpoints: str) -> Finding:
    try:
        store = open_store(endpoints)
    except ValueError as error:
        return Finding(Verdict.MISSING, "store", f"CROWFLY_STORE: {error}")
    try:
        nodes = await store.read(wire.NODES)
        workers = await store.read(wire.WORKERS)
    except StoreError as error:
        return Finding(Verdict.ABSENT, "store", f"{error}; `crowfly up` starts its own")
    finally:
        await store.close()
    return Finding(
        Verdict.GOOD, "store", f"{endpoints}: {len(nodes)} nodes, {len(workers)} workers registered"
    )


async def _cluster(where: str) -> list[Finding]:
    """The dispatcher that serves there and what it knows; or whether the port is free."""
    async with grpc.aio.insecure_channel(where, options=wire.CHANNEL_OPTIONS) as channel:
        stub = dispatcher_pb2_grpc.DispatcherServiceStub(channel)
        try:
            cluster = await stub.GetCluster(
                dispatcher_pb2.GetClusterRequest(), timeout=_CALL_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            return [_no_dispatcher(where, error)]
    stale = ", its map is stale: the store does not answer it" if cluster.map_stale else ""
    return [
        Finding(Verdict.GOOD, "dispatcher", f"serves at {where}{stale}"),
        *(_device(record.node, device) for record in cluster.nodes for device in record.devices),
        *(_worker(worker) for worker in cluster.workers),
    ]


def _no_dispatcher(where: str, error: grpc.aio.AioRpcError) -> Finding:
    try:
        address.check_free(address.parse(where))
    except OSError:
        what = f"{where} is taken by something else ({error.code().name.lower()})"
        advice = "choose another with CROWFLY_LISTEN=127.0.0.1:PORT"
        return Finding(Verdict.ABSENT, "dispatcher", f"{what}: {advice}")
    return Finding(Verdict.ABSENT, "dispatcher", f"none serves at {where}; the port is free")


def _device(node: str, device: topology_pb2.Device) -> Finding:
    if not device.HasField("memory"):
        reason = device.memory_unknown_reason
        return Finding(
            Verdict.ABSENT, "device", f"{device.uuid} on {node}: memory unknown: {reason}"
        )
    memory = device.memory
    free, total = memory.free_bytes / 2**30, memory.total_bytes / 2**30
    return Finding(
        Verdict.GOOD,
        "device",
        f"{device.uuid} ({device.name}) on {node}: {free:.1f} of {total:.1f} GiB free, "
        f"{memory.age_ms} ms ago",
    )


def _worker(worker: dispatcher_pb2.PlacedWorker) -> Finding:
    told, report = worker.registration, worker.report
    state = dispatcher_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower()
    facts = f"{told.worker_id} on {told.device_uuid}: {told.model.name}, {state}"
    if worker.HasField("report"):
        free_mib = report.free_pages * told.page_bytes / 2**20
        facts += (
            f", {report.running_sequences} running, {report.held_claims} held, "
            f"{report.free_pages - worker.promised_pages} of {told.total_pages} pages free "
            f"({free_mib:.0f} MiB), {worker.report_age_ms} ms ago"
        )
    good = worker.state == dispatcher_pb2.WORKER_STATE_READY
    return Finding(Verdict.GOOD if good else Verdict.ABSENT, "worker", facts)
