"""The book of worker reports, and the stream that fills it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crowfly import wire
from crowfly.errors import InvalidRequest
from crowfly.v1 import common_pb2, topology_pb2, topology_pb2_grpc
from crowfly_topology import servicer
from crowfly_topology.reports import Reports

WAIT_SECONDS = 20.0


def a_report(worker: str = "w", epoch: str = "e", sequence: int = 1) -> common_pb2.WorkerReport:
    return common_pb2.WorkerReport(worker_id=worker, epoch=epoch, sequence=sequence)


class ReportsNeverGoBack(RuleBasedStateMachine):
    """Two workers that restart, reconnect, and leave old streams open behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.reports = Reports()
        self.epochs = {"a": 0, "b": 0}
        self.streams: dict[int, tuple[str, int]] = {}

    def newest(self) -> dict[str, tuple[int, int]]:
        return {
            reported.report.worker_id: (int(reported.report.epoch), reported.report.sequence)
            for reported in self.reports.newest()
        }

    @rule(worker=st.sampled_from("ab"), restarts=st.booleans())
    def connect(self, worker: str, restarts: bool) -> None:
        self.epochs[worker] += restarts
        self.streams[self.reports.open()] = (worker, self.epochs[worker])

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), sequence=st.integers(1, 9))
    def report(self, data: st.DataObject, sequence: int) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        worker, epoch = self.streams[stream]
        before = self.newest()
        self.reports.accept(stream, a_report(worker, str(epoch), sequence), 0.0)
        expected = max(before.get(worker, (0, 0)), (epoch, sequence))
        assert self.newest() == before | {worker: expected}

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        worker, _ = self.streams.pop(stream)
        before = self.newest()
        self.reports.close(stream)
        assert self.newest() in (before, {k: v for k, v in before.items() if k != worker})

    @invariant()
    def every_report_has_an_open_stream(self) -> None:
        self.reports.check()


TestReportsNeverGoBack = ReportsNeverGoBack.TestCase


def test_the_end_of_a_stream_removes_the_report_of_its_worker_alone() -> None:
    reports = Reports()
    first, second = reports.open(), reports.open()
    reports.accept(first, a_report("a"), 1.0)
    reports.accept(second, a_report("b"), 2.0)
    reports.close(first)
    (left,) = reports.newest()
    assert (left.report.worker_id, left.arrived_at) == ("b", 2.0)


def test_the_end_of_an_old_process_leaves_the_report_of_the_new_one() -> None:
    reports = Reports()
    old, new = reports.open(), reports.open()
    reports.accept(old, a_report(epoch="old", sequence=7), 1.0)
    reports.accept(new, a_report(epoch="new", sequence=1), 2.0)
    reports.accept(old, a_report(epoch="old", sequence=8), 3.0)
    reports.close(old)
    assert [reported.report.epoch for reported in reports.newest()] == ["new"]


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (a_report(worker=""), "needs worker_id and epoch"),
        (a_report(epoch=""), "needs worker_id and epoch"),
        (a_report(worker="other"), "this stream reported for"),
    ],
    ids=["no worker", "no epoch", "another worker"],
)
def test_a_report_of_nobody_or_of_somebody_else_is_refused(
    report: common_pb2.WorkerReport, message: str
) -> None:
    reports = Reports()
    stream = reports.open()
    reports.accept(stream, a_report(), 0.0)
    with pytest.raises(InvalidRequest, match=message):
        reports.accept(stream, report, 0.0)
    assert [reported.report for reported in reports.newest()] == [a_report()]


@asynccontextmanager
async def serving(
    reports: Reports,
) -> AsyncIterator["topology_pb2_grpc.TopologyServiceAsyncStub"]:
    server = grpc.aio.server(options=wire.SERVER_OPTIONS)
    topology_pb2_grpc.add_TopologyServiceServicer_to_server(
        servicer.TopologyServicer(reports), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield topology_pb2_grpc.TopologyServiceStub(channel)
    await server.stop(None)


async def until_there_are(count: int, reports: Reports) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(reports.newest()) != count:
        assert time.monotonic() < deadline, f"still {len(reports.newest())} reports"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("ending", ["done", "cancelled", "channel closed"])
def test_a_report_stands_until_its_stream_ends(ending: str) -> None:
    async def main() -> None:
        reports = Reports()
        async with serving(reports) as stub:
            call = stub.Report()
            await call.write(topology_pb2.ReportRequest(report=a_report("w")))
            await until_there_are(1, reports)
            if ending == "done":
                await call.done_writing()
                assert await call == topology_pb2.ReportResponse()
            elif ending == "cancelled":
                call.cancel()
            if ending != "channel closed":
                await until_there_are(0, reports)
        await until_there_are(0, reports)

    asyncio.run(main())


def test_an_invalid_report_ends_the_stream_with_the_reason() -> None:
    async def main() -> None:
        reports = Reports()
        async with serving(reports) as stub:
            call = stub.Report()
            await call.write(topology_pb2.ReportRequest(report=a_report()))
            await call.write(topology_pb2.ReportRequest())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == "a report needs worker_id and epoch, both not empty"
            await until_there_are(0, reports)

    asyncio.run(main())


def test_a_silent_worker_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "SILENCE_SECONDS", 0.1)

    async def main() -> None:
        reports = Reports()
        async with serving(reports) as stub:
            call = stub.Report()
            await call.write(topology_pb2.ReportRequest(report=a_report()))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until_there_are(0, reports)

    asyncio.run(main())
