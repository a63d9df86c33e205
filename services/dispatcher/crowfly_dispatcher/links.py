"""One control link per worker of the map."""

import asyncio
import logging
from collections.abc import Collection

from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.control_link import ControlLink
from crowfly_dispatcher.core.model import WorkerFacts

log = logging.getLogger(__name__)


class Links:
    """Links run as tasks of `group` until `stop`."""

    def __init__(self, group: asyncio.TaskGroup, dispatcher_id: str, cluster: Cluster) -> None:
        self._group = group
        self._dispatcher_id = dispatcher_id
        self._cluster = cluster
        self._links: dict[str, tuple[ControlLink, asyncio.Task[None]]] = {}

    def to(self, worker_id: str) -> ControlLink:
        """Raises `KeyError` for a worker that is not in the map."""
        return self._links[worker_id][0]

    def follow(self, workers: Collection[WorkerFacts]) -> None:
        """Link with exactly these. A worker that was started again is another one."""
        wanted = {(facts.id, facts.epoch) for facts in workers}
        for link, _ in list(self._links.values()):
            if (link.facts.id, link.facts.epoch) not in wanted:
                self._drop(link.facts)
        for facts in workers:
            if facts.id not in self._links:
                self._start(facts)

    def stop(self) -> None:
        for _, task in self._links.values():
            task.cancel()

    def _start(self, facts: WorkerFacts) -> None:
        link = ControlLink(facts, self._dispatcher_id, self._cluster)
        task = self._group.create_task(link.run(), name=f"link {facts.id}")
        self._links[facts.id] = (link, task)
        log.info("worker %s joined: %s at %s", facts.id, facts.model, facts.address)

    def _drop(self, facts: WorkerFacts) -> None:
        _, task = self._links.pop(facts.id)
        task.cancel()
        log.info("worker %s left", facts.id)
