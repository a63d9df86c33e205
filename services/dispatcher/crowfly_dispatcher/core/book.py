"""The cluster as one dispatcher knows it: the last reports, and what was promised since.

    free pages = last report - promises that the report does not include yet

A report names the last claim that it includes, so this is exact without comparing clocks.
"""

from collections.abc import Collection
from dataclasses import replace

from crowfly_dispatcher.core.model import Link, Promise, Worker, WorkerFacts, WorkerLoad


class Book:
    """The one owner of this state. What is said of an unknown worker or epoch is dropped."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._promises: dict[str, dict[str, Promise]] = {}  # by worker, then by reservation

    def workers(self) -> Collection[Worker]:
        return self._workers.values()

    def worker(self, id: str) -> Worker | None:
        return self._workers.get(id)

    def register(self, facts: WorkerFacts) -> None:
        """A worker joined. A new epoch starts from nothing; the same one changes nothing."""
        if self._known(facts.id, facts.epoch) is None:
            self._workers[facts.id] = Worker(facts, Link.CONNECTING, None, 0, 0, 0)
            self._promises[facts.id] = {}

    def unregister(self, id: str) -> None:
        """A worker left."""
        self._workers.pop(id, None)
        self._promises.pop(id, None)

    def connected(self, id: str, epoch: str) -> None:
        """A control stream began; its claims count from 1."""
        self._begin(id, epoch, Link.CONNECTED)

    def lost(self, id: str, epoch: str) -> None:
        """The control stream ended. Its promises end with it: nothing will say what became of
        them, and the worker is not chosen before a new stream brought a new report."""
        self._begin(id, epoch, Link.SUSPECT)

    def report(self, id: str, epoch: str, load: WorkerLoad, applied: int | None = None) -> None:
        """A report, from whatever source; the newest wins.

        `applied` is the open sequence of the last claim that it includes, known for a report
        that came by the control stream. It holds for any newer report as well.
        """
        worker = self._known(id, epoch)
        if worker is None:
            return
        if applied is not None:
            promises = self._promises[id]
            for promise in [p for p in promises.values() if p.open_sequence <= applied]:
                del promises[promise.reservation]
        self._set(replace(worker, load=_newer(worker.load, load)))

    def promise(self, id: str, promise: Promise) -> None:
        """Count a claim as taken until a report includes it, or until `release`.

        Raises `ValueError` if the worker does not have the pages, or the reservation is known.
        """
        worker = self._workers.get(id)
        if worker is None or promise.pages > worker.free_pages:
            raise ValueError(f"{id} does not have {promise.pages} free pages")
        if promise.reservation in self._promises[id]:
            raise ValueError(f"reservation promised twice at {id}")
        self._promises[id][promise.reservation] = promise
        self._set(worker)

    def release(self, id: str, reservation: str) -> None:
        """The worker refused. One that is not promised (any more) changes nothing."""
        if self._promises.get(id, {}).pop(reservation, None) is not None:
            self._set(self._workers[id])

    def release_short(self, id: str, reservation: str, free_pages: int) -> None:
        """As `release`, when the worker refused because it had only `free_pages` left, after the
        claims sent before this one. No more is believed to be free until the next report."""
        worker, promises = self._workers.get(id), self._promises.get(id, {})
        refused = promises.get(reservation)
        if worker and worker.load and refused:
            before = [p.pages for p in promises.values() if p.open_sequence < refused.open_sequence]
            load = _at_most(worker.load, free_pages + sum(before))
            self._workers[id] = replace(worker, load=load)
        self.release(id, reservation)

    def check(self) -> None:
        """Raises `AssertionError` unless the sums are those of the promises, each worker has its
        list of them, and only connected workers have any."""
        assert self._workers.keys() == self._promises.keys()
        for id, worker in self._workers.items():
            promises = self._promises[id]
            assert worker.facts.id == id
            assert worker == _with_sums(worker, promises.values())
            assert worker.link is Link.CONNECTED or not promises
            assert all(key == promise.reservation for key, promise in promises.items())

    def _known(self, id: str, epoch: str) -> Worker | None:
        worker = self._workers.get(id)
        return worker if worker and worker.facts.epoch == epoch else None

    def _begin(self, id: str, epoch: str, link: Link) -> None:
        worker = self._known(id, epoch)
        if worker is not None:
            self._promises[id].clear()
            self._set(replace(worker, link=link))

    def _set(self, worker: Worker) -> None:
        id = worker.facts.id
        self._workers[id] = _with_sums(worker, self._promises[id].values())


def _with_sums(worker: Worker, promises: Collection[Promise]) -> Worker:
    return replace(
        worker,
        promised_pages=sum(promise.pages for promise in promises),
        promised_prompt_tokens=sum(promise.prompt_tokens for promise in promises),
        promised_sequences=len(promises),
    )


def _at_most(load: WorkerLoad, free_pages: int) -> WorkerLoad:
    return replace(
        load,
        free_pages=min(load.free_pages, free_pages),
        largest_free_run_pages=min(load.largest_free_run_pages, free_pages),
    )


def _newer(known: WorkerLoad | None, heard: WorkerLoad) -> WorkerLoad:
    """The same report heard again is still true: it counts from then."""
    if known is None or heard.sequence > known.sequence:
        return heard
    if heard.sequence == known.sequence:
        return replace(known, at=max(known.at, heard.at))
    return known
