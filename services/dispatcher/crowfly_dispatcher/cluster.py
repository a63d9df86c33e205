"""All that this dispatcher knows: the core's book, and the words of the wire that it came from.

The one owner of both, so that what an operator reads is what decisions are made of.
"""

from collections.abc import Collection
from dataclasses import dataclass

from crowfly import wire
from crowfly.v1 import common_pb2, topology_pb2, worker_pb2
from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.model import Link, WorkerFacts
from crowfly_dispatcher.decode import facts_of, load_of

# A worker that lives registers again within its lease, also when the store comes back empty.
STAY_SECONDS = wire.LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class KnownNode:
    record: topology_pb2.NodeRecord
    received_at: float  # seconds; the ages in the record count from then


class Cluster:
    """`watched`: the store's prefixes that make the map; it is stale until all were heard."""

    def __init__(self, watched: Collection[str]) -> None:
        self.book = Book()
        self._registrations: dict[str, worker_pb2.WorkerRegistration] = {}
        self._reports: dict[str, common_pb2.WorkerReport] = {}
        self._unlisted: dict[str, float] = {}  # by worker: when the store dropped it, in seconds
        self._nodes: dict[str, KnownNode] = {}
        self._unheard = set(watched)

    @property
    def map_stale(self) -> bool:
        return bool(self._unheard)

    @property
    def nodes(self) -> Collection[KnownNode]:
        return self._nodes.values()

    def facts(self) -> list[WorkerFacts]:
        return [worker.facts for worker in self.book.workers()]

    def registration(self, worker_id: str) -> worker_pb2.WorkerRegistration:
        """Raises `KeyError` for a worker that is not in the book."""
        return self._registrations[worker_id]

    def report(self, worker_id: str) -> common_pb2.WorkerReport | None:
        """The report that the book holds of this worker, in full."""
        return self._reports.get(worker_id)

    def joined(self, registration: worker_pb2.WorkerRegistration) -> None:
        """Raises `ValueError` for a registration that cannot be used; nothing changed then."""
        facts = facts_of(registration)
        self._unlisted.pop(facts.id, None)
        known = self.book.worker(facts.id)
        if known is None or known.facts.epoch != facts.epoch:
            self.left(facts.id)
            self.book.register(facts)
            self._registrations[facts.id] = registration

    def unlisted(self, worker_id: str, now: float) -> None:
        """The store lists it no more. It left, or the store lost its data: a worker whose control
        stream lives stays for `STAY_SECONDS`, and for as long as it is listed if it joins again."""
        if self.book.worker(worker_id) is not None:
            self._unlisted.setdefault(worker_id, now)
        self.drop_unlisted(now)

    def drop_unlisted(self, now: float) -> None:
        """Forget the unlisted workers whose control stream ended, or whose time is over."""
        for worker_id, since in list(self._unlisted.items()):
            worker = self.book.worker(worker_id)
            connected = worker is not None and worker.link is Link.CONNECTED
            if not connected or now - since >= STAY_SECONDS:
                self.left(worker_id)

    def left(self, worker_id: str) -> None:
        self._unlisted.pop(worker_id, None)
        self.book.unregister(worker_id)
        self._registrations.pop(worker_id, None)
        self._reports.pop(worker_id, None)

    def heard(self, report: common_pb2.WorkerReport, at: float, applied: int | None = None) -> None:
        """`at`: when it was true. `applied`: with a report that came by the control stream."""
        self.book.report(report.worker_id, report.epoch, load_of(report, at), applied)
        worker = self.book.worker(report.worker_id)
        if worker is None or worker.load is None:
            return
        if (worker.facts.epoch, worker.load.sequence) == (report.epoch, report.sequence):
            self._reports[report.worker_id] = report

    def node_heard(self, record: topology_pb2.NodeRecord, now: float) -> None:
        """Remember the record, and apply the workers' reports in it."""
        self._nodes[record.node] = KnownNode(record, now)
        for worker in record.workers:
            self.heard(worker.report, now - worker.age_ms / 1000)

    def node_left(self, node: str) -> None:
        self._nodes.pop(node, None)

    def store_answers(self, prefix: str) -> bool:
        """Whether that is news."""
        news = prefix in self._unheard
        self._unheard.discard(prefix)
        return news

    def store_lost(self, prefix: str) -> None:
        """The map stays as it is."""
        self._unheard.add(prefix)
