"""The newest report of each worker on this node.

Epochs are random, so their order is that of the streams: a process that started later opened its
stream later. Within an epoch the sequence decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crowfly.errors import InvalidRequest
from crowfly.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Reported:
    report: common_pb2.WorkerReport
    arrived_at: float  # time.monotonic()
    stream: int  # whose end removes this


class Reports:
    def __init__(self) -> None:
        self._streams: dict[int, tuple[str, str] | None] = {}  # stream -> (worker_id, epoch)
        self._opened = 0
        self._newest: dict[str, Reported] = {}

    def open(self) -> int:
        """A number for a new stream, larger than those before."""
        self._opened += 1
        self._streams[self._opened] = None
        return self._opened

    def accept(self, stream: int, report: common_pb2.WorkerReport, now: float) -> None:
        """Keep `report` unless a newer one of the same worker is here.

        Raises `InvalidRequest` for a report without a worker or epoch, or not of the one process
        that this stream spoke for so far.
        """
        self._identify(stream, report)
        known = self._newest.get(report.worker_id)
        if known is None or _is_newer(stream, report, known):
            owner = stream if known is None else max(stream, known.stream)
            self._newest[report.worker_id] = Reported(report, now, owner)

    def close(self, stream: int) -> None:
        """The stream ended: what it reported last is no longer true."""
        speaker = self._streams.pop(stream)
        if speaker and (known := self._newest.get(speaker[0])) and known.stream == stream:
            del self._newest[speaker[0]]

    def newest(self) -> Sequence[Reported]:
        """By worker id."""
        return [self._newest[worker_id] for worker_id in sorted(self._newest)]

    def check(self) -> None:
        """Raises `AssertionError` when a report belongs to no open stream of its worker."""
        for worker_id, reported in self._newest.items():
            speaker = (worker_id, reported.report.epoch)
            assert self._streams.get(reported.stream) == speaker, (worker_id, reported)

    def _identify(self, stream: int, report: common_pb2.WorkerReport) -> None:
        if not report.worker_id or not report.epoch:
            raise InvalidRequest("a report needs worker_id and epoch, both not empty")
        speaker = (report.worker_id, report.epoch)
        if self._streams[stream] not in (None, speaker):
            raise InvalidRequest(f"this stream reported for {self._streams[stream]}, not {speaker}")
        self._streams[stream] = speaker


def _is_newer(stream: int, report: common_pb2.WorkerReport, known: Reported) -> bool:
    if report.epoch == known.report.epoch:
        return report.sequence > known.report.sequence
    return stream > known.stream
