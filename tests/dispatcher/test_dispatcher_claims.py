"""From Place to a claim on a worker, over real gRPC."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly.v1.common_pb2 import (
    KERNEL_RUNG_FUSED,
    TUNING_PROFILE_MEMORY_EFFICIENT,
    TUNING_PROFILE_THROUGHPUT_OPTIMIZED,
)
from crowfly.v1.dispatcher_pb2 import (
    WORKER_STATE_READY,
    WORKER_STATE_SUSPECT,
    GetClusterResponse,
    PlaceRequest,
    PlaceResponse,
)
from crowfly.v1.worker_pb2 import (
    REFUSAL_REASON_DRAINING,
    REFUSAL_REASON_INVALID,
    ControlResponse,
    OpenStream,
)
from crowfly_dispatcher import control_stream

if TYPE_CHECKING:
    from tests.dispatcher.conftest import Dispatcher, ScriptedWorker, Stage

Play = Callable[[Callable[["Stage"], Awaitable[None]]], None]


async def _ready(stage: Stage, *ids: str) -> tuple[Dispatcher, list[ScriptedWorker]]:
    dispatcher = await stage.dispatcher()
    workers = [await stage.worker(id) for id in ids]
    for id in ids:
        await dispatcher.until_state(id, WORKER_STATE_READY)
    return dispatcher, workers


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while True:
            if true():
                return
            await asyncio.sleep(0.005)


def test_a_placement_is_a_claim_on_the_worker_and_a_ticket_for_it(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.say(prefill_tokens_per_s=1000, step_base_ms=10, step_per_sequence_ms=1)
        await dispatcher.until(lambda seen: seen.workers[0].report.prefill_tokens_per_s == 1000)
        placed = await dispatcher.place(
            request_id="r1",
            prompt_tokens=100,
            max_tokens=20,
            kernel_hint=KERNEL_RUNG_FUSED,
            tuning_profile=TUNING_PROFILE_THROUGHPUT_OPTIMIZED,
        )
        (claim,) = worker.opens
        assert claim == OpenStream(
            sequence=1,
            reservation_id=placed.ticket,
            request_id="r1",
            prompt_tokens=100,
            max_tokens=20,
            kernel_hint=KERNEL_RUNG_FUSED,
        )
        assert len(bytes.fromhex(placed.ticket)) == 16
        assert placed == PlaceResponse(
            request_id="r1",
            ticket=placed.ticket,
            worker_address=worker.registration.address,
            worker_id="w0",
            model="m",
            max_tokens=20,
            expires_in_ms=5000,
            predicted_ttft_ms=100.0,
            predicted_total_ms=100.0 + 20 * 11.0,
        )

    play(scene)


def test_what_was_not_said_is_filled_in(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        request = PlaceRequest(prompt_tokens=24)
        one = await dispatcher.stub.Place(request)
        assert (one.model, one.max_tokens, worker.opens[0].max_tokens) == ("m", 1000, 1000)
        assert one.request_id == worker.opens[0].request_id != ""
        worker.say(free_pages=100)
        await dispatcher.until(lambda seen: seen.workers[0].report.free_pages == 100)
        other = await dispatcher.stub.Place(request)
        assert other.request_id != one.request_id
        assert other.ticket != one.ticket

    play(scene)


def test_a_refusal_goes_to_the_next_best(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (first, second) = await _ready(stage, "a", "b")
        second.say(waiting_prompt_tokens=1000)
        await dispatcher.until(lambda seen: seen.workers[1].report.waiting_prompt_tokens == 1000)
        first.answer = first.refuse
        placed = await dispatcher.place()
        assert placed.worker_id == "b"
        assert [claim.reservation_id for claim in second.opens] == [placed.ticket]
        assert [claim.reservation_id for claim in first.opens] != [placed.ticket]
        picture = await dispatcher.until(lambda seen: seen.workers[1].report.free_pages == 99)
        assert [worker.promised_pages for worker in picture.workers] == [0, 0]

    play(scene)


def test_a_worker_that_refused_for_want_of_pages_is_not_asked_by_the_next_request(
    play: Play,
) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.mute = True  # the refusal alone tells that somebody else took the pages
        worker.report.free_pages = 2
        for _ in range(2):
            status, message = await dispatcher.refused(prompt_tokens=48)
            assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "4 pages of 16 tokens are needed and the best worker has 2" in message
        assert len(worker.opens) == 1
        assert (await dispatcher.place()).worker_id == "w0"

    play(scene)


def test_three_refusals_are_an_answer(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, workers = await _ready(stage, "a", "b", "c", "d")
        for worker in workers:
            worker.answer = worker.refuse
        status, message = await dispatcher.refused()
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "refused: as scripted" in message
        assert sorted(len(worker.opens) for worker in workers) == [0, 1, 1, 1]

    play(scene)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (REFUSAL_REASON_DRAINING, grpc.StatusCode.UNAVAILABLE),
        (REFUSAL_REASON_INVALID, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_the_only_workers_refusal_is_told_as_it_is(
    play: Play, reason: int, status: grpc.StatusCode
) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.answer = lambda claim: worker.refuse(claim, reason)  # type: ignore[arg-type]
        assert await dispatcher.refused() == (status, "worker w0 refused: as scripted")
        assert len(worker.opens) == 1

    play(scene)


def test_a_worker_that_dies_under_a_claim_is_suspect_and_the_next_one_takes_it(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (first, second) = await _ready(stage, "a", "b")
        second.say(waiting_prompt_tokens=1000)
        await dispatcher.until(lambda seen: seen.workers[1].report.waiting_prompt_tokens == 1000)
        first.answer = first.ignore
        placing = asyncio.create_task(dispatcher.place())
        await _until(lambda: first.opens)
        await first.die()
        assert (await placing).worker_id == "b"
        await dispatcher.until_state("a", WORKER_STATE_SUSPECT)

    play(scene)


def test_a_claim_without_an_answer_is_given_back_and_the_next_worker_takes_it(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (first, second) = await _ready(stage, "a", "b")
        second.say(waiting_prompt_tokens=1000)
        await dispatcher.until(lambda seen: seen.workers[1].report.waiting_prompt_tokens == 1000)
        first.answer = first.ignore
        assert (await dispatcher.place()).worker_id == "b"
        await _until(lambda: first.closes)
        assert first.closes == [claim.reservation_id for claim in first.opens]

    play(scene)


def test_a_claim_without_an_answer_leaves_the_others_of_its_stream_alone(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.answer = worker.ignore
        monkeypatch.setattr(control_stream, "ANSWER_SECONDS", 0.2)
        unanswered = asyncio.create_task(dispatcher.refused())
        await _until(lambda: len(worker.opens) == 1)
        monkeypatch.setattr(control_stream, "ANSWER_SECONDS", 20.0)
        patient = asyncio.create_task(dispatcher.place())
        await _until(lambda: len(worker.opens) == 2)
        status, message = await unanswered
        assert status is grpc.StatusCode.UNAVAILABLE
        assert message.startswith("worker w0 did not answer a claim")
        await _until(lambda: worker.closes)
        (stream,) = worker.streams
        stream.put_nowait(worker.take(worker.opens[1]))
        assert (await patient).ticket == worker.opens[1].reservation_id
        assert worker.closes == [worker.opens[0].reservation_id]
        assert len(worker.hellos) == 1

    play(scene)


def test_the_only_worker_lost_under_a_claim_is_unavailable(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.answer = worker.ignore
        refused = asyncio.create_task(dispatcher.refused())
        await _until(lambda: worker.opens)
        await worker.die()
        status, message = await refused
        assert status is grpc.StatusCode.UNAVAILABLE
        assert message == "no worker takes requests now (workers: 1 not connected)"

    play(scene)


def test_a_caller_who_gives_up_leaves_no_claim(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.answer = worker.ignore
        call = dispatcher.stub.Place(PlaceRequest(prompt_tokens=10, max_tokens=7))
        await _until(lambda: worker.opens)
        call.cancel()
        await _until(lambda: worker.closes)
        assert worker.closes == [worker.opens[0].reservation_id]
        worker.answer = worker.take
        assert (await dispatcher.place()).worker_id == "w0"

    play(scene)


def test_a_placement_in_flight_is_finished_when_the_dispatcher_ends(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        worker = await stage.worker("w0")
        asked = asyncio.Event()

        def answer_later(claim: OpenStream) -> None:
            asked.set()
            for stream in worker.streams:
                asyncio.get_running_loop().call_later(0.2, stream.put_nowait, worker.take(claim))

        worker.answer = answer_later
        async with stage.serving() as dispatcher:
            await dispatcher.until_state("w0", WORKER_STATE_READY)
            placing = asyncio.create_task(dispatcher.place())
            await asked.wait()
        assert (await placing).worker_id == "w0"
        assert worker.closes == []

    play(scene)


def test_when_the_dispatcher_ends_the_slowest_placement_still_gets_its_answer(play: Play) -> None:
    """Three tries of a second each, without an answer."""

    async def scene(stage: Stage) -> None:
        workers = [await stage.worker(id) for id in "abc"]
        for worker in workers:
            worker.answer = worker.ignore
        async with stage.serving() as dispatcher:
            for id in "abc":
                await dispatcher.until_state(id, WORKER_STATE_READY)
            refused = asyncio.create_task(dispatcher.refused())
            await _until(lambda: any(worker.opens for worker in workers))
        status, message = await refused
        assert status is grpc.StatusCode.UNAVAILABLE
        assert message.endswith("did not answer a claim within 1 s")

    play(scene)


def test_a_late_answer_harms_nobody(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        late: list[OpenStream] = []
        worker.answer = late.append
        calls = [
            dispatcher.stub.Place(PlaceRequest(prompt_tokens=10, max_tokens=7)) for _ in range(2)
        ]
        await _until(lambda: len(late) == 2)
        for call in calls:
            call.cancel()
        await _until(lambda: len(worker.closes) == 2)

        def answer_all(claim: OpenStream) -> ControlResponse:
            for stream in worker.streams:
                stream.put_nowait(worker.take(late[0]))
                stream.put_nowait(worker.refuse(late[1]))
            return worker.take(claim)

        worker.answer = answer_all
        assert (await dispatcher.place()).worker_id == "w0"
        assert (await dispatcher.place()).worker_id == "w0"

    play(scene)


def test_the_book_counts_a_claim_until_the_report_does(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")
        worker.mute = True
        await dispatcher.place(prompt_tokens=33, max_tokens=1)
        picture = await dispatcher.cluster()
        assert picture.workers[0].promised_pages == 3
        assert picture.workers[0].report.free_pages == 100
        worker.mute = False
        worker.say()
        picture = await dispatcher.until(lambda seen: seen.workers[0].promised_pages == 0)
        assert picture.workers[0].report.free_pages == 97

    play(scene)


def test_placements_whose_callers_never_come_leave_nothing_behind(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, (worker,) = await _ready(stage, "w0")

        def take_and_expire(claim: OpenStream) -> ControlResponse:
            answer = worker.take(claim)
            worker.report.free_pages = worker.report.largest_free_run_pages = 100
            return answer

        worker.answer = take_and_expire
        await dispatcher.place()
        before = _futures()
        for _ in range(1000):
            await dispatcher.place()
        picture = await dispatcher.until(lambda seen: seen.workers[0].promised_pages == 0)
        assert picture.workers[0].report.free_pages == 100
        assert _futures() < before + 100

    play(scene)


def _futures() -> int:
    gc.collect()
    return sum(type(each) is asyncio.Future for each in gc.get_objects())


def test_a_burst_is_shared_evenly(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, workers = await _ready(stage, "a", "b")
        for worker in workers:
            worker.mute = True  # the dispatcher has nothing but its own book
        placed = await asyncio.gather(*(dispatcher.place(request_id=str(n)) for n in range(32)))
        assert Counter(each.worker_id for each in placed) == {"a": 16, "b": 16}

    play(scene)


def test_memory_efficient_fills_one_worker_before_the_next(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, _ = await _ready(stage, "a", "b")
        ids = {
            (await dispatcher.place(tuning_profile=TUNING_PROFILE_MEMORY_EFFICIENT)).worker_id
            for _ in range(8)
        }
        assert len(ids) == 1

    play(scene)


def test_of_two_dispatchers_racing_for_one_place_exactly_one_wins(play: Play) -> None:
    def free(pages: int) -> Callable[[GetClusterResponse], bool]:
        def seen(picture: GetClusterResponse) -> bool:
            worker = picture.workers[0]
            return worker.report.free_pages == pages and worker.promised_pages == 0

        return seen

    async def scene(stage: Stage) -> None:
        one, (worker,) = await _ready(stage, "w0")
        other = await stage.dispatcher()
        await other.until_state("w0", WORKER_STATE_READY)
        statuses: Counter[str] = Counter()
        for _ in range(50):
            worker.say(free_pages=2)
            await one.until(free(2))
            await other.until(free(2))
            won = await asyncio.gather(
                one.place(prompt_tokens=20),
                other.place(prompt_tokens=20),
                return_exceptions=True,
            )
            losers = [each for each in won if isinstance(each, grpc.aio.AioRpcError)]
            assert [loser.code() for loser in losers] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
            statuses.update("one" if won[0] is not losers[0] else "other" for _ in losers)
        assert statuses.total() == 50

    play(scene)
