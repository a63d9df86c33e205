"""A dispatcher claims, gives back, and always knows what is left."""

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly import wire
from crowfly.v1 import worker_pb2

if TYPE_CHECKING:
    from tests.worker.wire.conftest import ServeScripted

TICKET = "0123456789abcdef0123456789ABCDEF"
GOOD = {
    "sequence": 2,
    "reservation_id": TICKET,
    "request_id": "r",
    "prompt_tokens": 4,
    "max_tokens": 12,
}


def test_an_open_claims_its_pages_until_it_is_closed(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            opened = await dispatcher.open(TICKET, prompt_tokens=17, max_tokens=16)
            assert isinstance(opened, worker_pb2.StreamOpened)
            assert opened.reservation_id == TICKET
            assert wire.CLAIM_SECONDS * 900 < opened.expires_in_ms <= wire.CLAIM_SECONDS * 1000
            assert served.engine.load().free_pages == 20 - 3
            served.worker.reservations.check()
            await dispatcher.close(TICKET)
            await served.idle()

    asyncio.run(scenario())


def test_the_same_open_again_is_the_same_claim(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            one, other = await served.dispatcher(), await served.dispatcher()
            first = await one.open(TICKET)
            again = await one.open(TICKET)
            elsewhere = await other.open(TICKET)
            for answer in (first, again, elsewhere):
                assert isinstance(answer, worker_pb2.StreamOpened)
            assert served.engine.load().claimed == 1

    asyncio.run(scenario())


def test_a_ticket_in_use_cannot_be_claimed_for_something_else(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            await dispatcher.open(TICKET, max_tokens=12)
            other_size = await dispatcher.open(TICKET, max_tokens=13)
            call = served.stub.Generate(
                worker_pb2.GenerateRequest(ticket=TICKET, prompt_token_ids=[1, 2, 3, 4])
            )
            await served.eventually(lambda: served.engine.load().running == 1)
            while_running = await dispatcher.open(TICKET, max_tokens=12)
            for answer in (other_size, while_running):
                assert isinstance(answer, worker_pb2.StreamRefused)
                assert answer.reason == worker_pb2.REFUSAL_REASON_INVALID
                assert answer.message == "reservation_id is already in use"
            call.cancel()
            await served.idle()

    asyncio.run(scenario())


def test_a_refusal_says_why_and_what_is_free(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            never = await dispatcher.open(served.ticket(), prompt_tokens=100, max_tokens=101)
            await dispatcher.open(served.ticket(), prompt_tokens=100, max_tokens=100)
            not_now = await dispatcher.open(served.ticket(), prompt_tokens=1, max_tokens=128)
            assert isinstance(never, worker_pb2.StreamRefused)
            assert never.reason == worker_pb2.REFUSAL_REASON_INVALID
            assert isinstance(not_now, worker_pb2.StreamRefused)
            assert not_now.reason == worker_pb2.REFUSAL_REASON_NO_PAGES
            assert (not_now.needed_pages, not_now.free_pages) == (9, 20 - 13)

    asyncio.run(scenario())


def test_a_claim_without_a_caller_is_freed(
    serve_scripted: "ServeScripted", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CLAIM_SECONDS", 0.05)

    async def scenario() -> None:
        async with serve_scripted() as served:
            ticket = await served.placed()
            await served.idle()
            call = served.stub.Generate(
                worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=[1, 2, 3, 4])
            )
            assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(scenario())


def test_a_claim_outlives_its_control_stream(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            await dispatcher.open(TICKET)
            await dispatcher.done_writing()
            assert await dispatcher.end() == (grpc.StatusCode.OK, "")
            assert served.engine.load().claimed == 1

    asyncio.run(scenario())


def test_capacity_counts_exactly_the_opens_that_were_answered(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher, other = await served.dispatcher(), await served.dispatcher()
            first = await dispatcher.capacity()
            assert (first.applied_sequence, first.report.free_pages) == (0, 20)
            for _ in range(7):
                await dispatcher.open(served.ticket())
            await dispatcher.capacity(lambda report: report.held_claims == 7)
            for capacity in dispatcher.capacities:  # every open took one page
                assert capacity.applied_sequence == capacity.report.held_claims
                assert capacity.report.free_pages == 20 - capacity.applied_sequence
            heard = await other.capacity(lambda report: report.held_claims == 7)
            assert heard.applied_sequence == 0
            assert heard.report.epoch == dispatcher.capacities[0].report.epoch
            sequences = [capacity.report.sequence for capacity in dispatcher.capacities]
            assert sequences == sorted(set(sequences))

    asyncio.run(scenario())


def test_an_open_that_changes_nothing_is_counted_at_once(
    serve_scripted: "ServeScripted", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 600.0)
    monkeypatch.setattr(wire, "CAPACITY_SECONDS", 0.0)
    monkeypatch.setattr(wire, "CLAIM_SECONDS", 600.0)

    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            await dispatcher.open(TICKET)
            assert (await dispatcher.capacity()).applied_sequence == 1
            # A round trip later the worker waits for the next change.
            await served.stub.GetTokenizer(worker_pb2.GetTokenizerRequest())
            await dispatcher.open(TICKET)
            assert (await dispatcher.capacity()).applied_sequence == 2

    asyncio.run(scenario())


def test_a_control_stream_is_logged_from_its_hello_to_its_end(
    serve_scripted: "ServeScripted", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "crowfly_worker.control")

    async def scenario() -> None:
        async with serve_scripted() as served:
            gone, cut = await served.dispatcher(), await served.dispatcher()
            for dispatcher in (gone, cut):
                await dispatcher.capacity()
            await gone.done_writing()
            await gone.end()

    asyncio.run(scenario())
    begins = "dispatcher d: its control stream begins"
    ended = "dispatcher d: its control stream has ended"
    assert sorted(caplog.messages) == [begins, begins, ended, ended]


def test_capacity_comes_as_a_heartbeat_without_any_change(
    serve_scripted: "ServeScripted", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.05)

    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            reports = [(await dispatcher.capacity()).report for _ in range(3)]
            assert [report.free_pages for report in reports] == [20, 20, 20]
            assert not reports[0].HasField("prefill_tokens_per_s")  # unknown, not zero
            assert reports[0].step_base_ms == 2.5

    asyncio.run(scenario())


def test_a_burst_of_changes_is_one_capacity(
    serve_scripted: "ServeScripted", monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a period of a minute, whatever follows the first capacity is held back."""
    monkeypatch.setattr(wire, "CAPACITY_SECONDS", 60.0)

    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            await dispatcher.capacity()
            for _ in range(5):
                await dispatcher.open(served.ticket())
            assert len(dispatcher.capacities) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"reservation_id": "12"}, "reservation_id"),
        ({"reservation_id": "g" * 32}, "reservation_id"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"request_id": "line\nbreak"}, "request_id"),
        ({"request_id": "é"}, "request_id"),
        ({"prompt_tokens": 0}, "prompt_tokens=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"sequence": 1}, "sequence=1 is not over 1"),
    ],
)
def test_a_bad_open_ends_its_own_stream_alone(
    serve_scripted: "ServeScripted", bad: dict[str, str | int], said: str
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            good, evil = await served.dispatcher(), await served.dispatcher()
            await evil.open(served.ticket())
            opening = worker_pb2.OpenStream(**{**GOOD, **bad})  # type: ignore[arg-type]
            await evil.send(worker_pb2.ControlRequest(open=opening))
            status, details = await evil.end()
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert said in details
            assert served.engine.load().claimed == 1
            answer = await good.open(served.ticket())
            assert isinstance(answer, worker_pb2.StreamOpened)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (worker_pb2.ControlRequest(), "neither open nor close"),
        (worker_pb2.ControlRequest(hello=worker_pb2.Hello()), "neither open nor close"),
        (
            worker_pb2.ControlRequest(close=worker_pb2.CloseStream(reservation_id="x")),
            "close.reservation_id",
        ),
    ],
    ids=["nothing", "hello again", "close of nothing"],
)
def test_a_bad_message_is_named(
    serve_scripted: "ServeScripted", message: worker_pb2.ControlRequest, said: str
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = await served.dispatcher()
            await dispatcher.send(message)
            status, details = await dispatcher.end()
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert said in details

    asyncio.run(scenario())


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_stream_that_does_not_begin_with_hello_is_refused(
    serve_scripted: "ServeScripted", writes_first: bool
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            dispatcher = served.silent_dispatcher()
            if writes_first:
                opening = worker_pb2.OpenStream(**GOOD)  # type: ignore[arg-type]
                await dispatcher.send(worker_pb2.ControlRequest(open=opening))
            await dispatcher.done_writing()
            status, details = await dispatcher.end()
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert "hello" in details
            await served.idle()

    asyncio.run(scenario())


def test_a_dispatcher_that_is_cut_off_leaves_nothing_running(
    serve_scripted: "ServeScripted", caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            async with grpc.aio.insecure_channel(served.worker.registration.address) as channel:
                from_afar = type(served.stub)(channel).Control()
                await from_afar.write(worker_pb2.ControlRequest(hello=worker_pb2.Hello()))
                await from_afar.read()
            dispatcher = await served.dispatcher()
            assert isinstance(await dispatcher.open(TICKET), worker_pb2.StreamOpened)

    asyncio.run(scenario())
    assert "Traceback" not in caplog.text
    assert not caplog.records
