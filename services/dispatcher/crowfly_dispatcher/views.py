"""What the dispatcher knows, in the words of the wire: for callers and for operators."""

from crowfly.v1 import dispatcher_pb2, topology_pb2
from crowfly_dispatcher.cluster import Cluster, KnownNode
from crowfly_dispatcher.core.model import Link, Worker

MAX_UINT32 = 2**32 - 1  # an age stops here, after 49 days


def models(cluster: Cluster) -> dispatcher_pb2.ListModelsResponse:
    """Those with a worker that takes requests now, by name. Of several contexts, the longest."""
    served: dict[str, dispatcher_pb2.ServedModel] = {}
    for worker in _by_id(cluster):
        if _state(worker) == dispatcher_pb2.WORKER_STATE_READY:
            registration = cluster.registration(worker.facts.id)
            model = served.setdefault(worker.facts.model, dispatcher_pb2.ServedModel())
            if registration.model.context_tokens > model.model.context_tokens:
                model.model.CopyFrom(registration.model)
            if registration.precision not in model.precisions:
                model.precisions.append(registration.precision)
            model.worker_addresses.append(registration.address)
    return dispatcher_pb2.ListModelsResponse(models=[served[name] for name in sorted(served)])


def everything(cluster: Cluster, now: float) -> dispatcher_pb2.GetClusterResponse:
    nodes = sorted(cluster.nodes, key=lambda node: node.record.node)
    return dispatcher_pb2.GetClusterResponse(
        nodes=[_node(node, now) for node in nodes],
        workers=[_worker(cluster, worker, now) for worker in _by_id(cluster)],
        map_stale=cluster.map_stale,
    )


def _by_id(cluster: Cluster) -> list[Worker]:
    return sorted(cluster.book.workers(), key=lambda worker: worker.facts.id)


def _state(worker: Worker) -> dispatcher_pb2.WorkerState.ValueType:
    if worker.link is Link.SUSPECT:
        return dispatcher_pb2.WORKER_STATE_SUSPECT
    if worker.link is Link.CONNECTING or worker.load is None:
        return dispatcher_pb2.WORKER_STATE_CONNECTING
    if worker.load.draining:
        return dispatcher_pb2.WORKER_STATE_DRAINING
    return dispatcher_pb2.WORKER_STATE_READY


def _worker(cluster: Cluster, worker: Worker, now: float) -> dispatcher_pb2.PlacedWorker:
    placed = dispatcher_pb2.PlacedWorker(
        registration=cluster.registration(worker.facts.id),
        state=_state(worker),
        promised_pages=worker.promised_pages,
    )
    report = cluster.report(worker.facts.id)
    if report is not None and worker.load is not None:  # its age goes with it, or neither
        placed.report.CopyFrom(report)
        placed.report_age_ms = _ms(now - worker.load.at)
    return placed


def _node(node: KnownNode, now: float) -> topology_pb2.NodeRecord:
    """The record, its ages counted up to now."""
    record = topology_pb2.NodeRecord()
    record.CopyFrom(node.record)
    since_ms = _ms(now - node.received_at)
    for device in record.devices:
        if device.HasField("memory"):
            device.memory.age_ms = min(device.memory.age_ms + since_ms, MAX_UINT32)
    for worker in record.workers:
        worker.age_ms = min(worker.age_ms + since_ms, MAX_UINT32)
    return record


def _ms(seconds: float) -> int:
    return min(max(0, round(1000 * seconds)), MAX_UINT32)
