"""Numbers this worker's reports, so that a reader knows the newer one."""

from crowfly.v1 import common_pb2
from crowfly_worker import report
from crowfly_worker.engine.port import Engine
from crowfly_worker.report import Identity
from crowfly_worker.reservations import Reservations


class Reporter:
    """Belongs to the loop."""

    def __init__(self, identity: Identity, engine: Engine, reservations: Reservations) -> None:
        self._identity = identity
        self._engine = engine
        self._reservations = reservations
        self._sequence = 0

    def picture(self) -> object:
        """Differs from an earlier one if a report is due."""
        return report.decisive(self._engine.load()), self._reservations.draining

    def make(self) -> common_pb2.WorkerReport:
        """The state at this moment, under the next number."""
        self._sequence += 1
        return report.worker_report(
            self._identity, self._engine.load(), self._sequence, self._reservations.draining
        )
