"""The engine's thread: one call per step, and a bounded stop."""

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from crowfly_worker.engine.port import Engine, SamplingParams, StepEvent
from crowfly_worker.engine.thread import EngineThread

if TYPE_CHECKING:
    from tests.worker.engine.conftest import Client, Oracle

SECONDS = 20.0


def unexpected(error: Exception) -> None:
    raise AssertionError("the engine's thread ended") from error


def test_events_of_one_step_come_in_one_call(
    make_client: Callable[..., "Client"], oracle: "Oracle", prompts: list[list[int]]
) -> None:
    engine = make_client(end_ids=frozenset()).engine
    calls: queue.Queue[list[StepEvent]] = queue.Queue()
    thread = EngineThread(engine, calls.put, unexpected)
    for id in "ab":
        engine.claim(id, len(prompts[0]), 4)
        engine.submit(id, prompts[0], SamplingParams())
    thread.start()
    try:
        steps = [calls.get(timeout=SECONDS) for _ in range(4)]
    finally:
        thread.stop(SECONDS)
    assert [[event.id for event in events] for events in steps] == [["a", "b"]] * 4
    answer = [events[0].tokens[0] for events in steps]
    assert answer == oracle.greedy(prompts[0], 4).tokens
    assert calls.empty()


def test_a_sleeping_thread_wakes_for_a_sequence_and_stops(
    make_client: Callable[..., "Client"],
) -> None:
    engine = make_client().engine
    calls: queue.Queue[list[StepEvent]] = queue.Queue()
    thread = EngineThread(engine, calls.put, unexpected)
    thread.start()
    try:
        for id in ("first", "second"):
            engine.claim(id, 3, 1)
            engine.submit(id, [1, 2, 3], SamplingParams())
            (event,) = calls.get(timeout=SECONDS)
            assert event.id == id
            assert event.finish is not None
    finally:
        thread.stop(SECONDS)
    assert not any(one.name == "engine" for one in threading.enumerate())


def test_claims_from_many_threads_while_it_runs(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=64).engine
    ended: queue.Queue[str] = queue.Queue()

    def note(events: list[StepEvent]) -> None:
        for event in events:
            if event.finish is not None:
                ended.put(event.id)

    def ask(name: int) -> None:
        for i in range(20):
            id = f"{name}-{i}"
            engine.claim(id, 4, 4)
            if i % 5 == 0:
                engine.release(id)
                ended.put(id)
            else:
                engine.submit(id, [1, 2, 3, 4], SamplingParams())
            if i % 3 == 0:
                engine.cancel(id)

    thread = EngineThread(engine, note, unexpected)
    thread.start()
    askers = [threading.Thread(target=ask, args=(name,)) for name in range(3)]
    try:
        for asker in askers:
            asker.start()
        seen = {ended.get(timeout=SECONDS) for _ in range(60)}
    finally:
        thread.stop(SECONDS)
    assert len(seen) == 60
    engine.check()
    assert engine.load().free_pages == 64


def test_a_stop_that_cannot_be_kept_says_so(make_client: Callable[..., "Client"]) -> None:
    engine = make_client().engine
    entered, leave = threading.Event(), threading.Event()

    def hang(events: list[StepEvent]) -> None:
        entered.set()
        leave.wait(SECONDS)

    thread = EngineThread(engine, hang, unexpected)
    engine.claim("a", 1, 1)
    engine.submit("a", [1], SamplingParams())
    thread.start()
    assert entered.wait(SECONDS)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="did not end"):
        thread.stop(0.05)
    assert time.monotonic() - started < SECONDS
    leave.set()
    thread.stop(SECONDS)


class Stuck:
    """An engine whose only step lasts until it is let go, and may then fail."""

    def __init__(self, engine: Engine, fault: Exception | None) -> None:
        self.facts = engine.facts
        self.claim, self.release, self.submit = engine.claim, engine.release, engine.submit
        self.cancel, self.load, self.wait = engine.cancel, engine.load, engine.wait
        self.entered, self.leave = threading.Event(), threading.Event()
        self._fault = fault

    def step(self) -> list[StepEvent]:
        self.entered.set()
        assert self.leave.wait(SECONDS)
        if self._fault is not None:
            raise self._fault
        return [StepEvent("a", (1,))]


@pytest.mark.parametrize("fault", [None, RuntimeError("out of memory")])
def test_a_step_that_outlives_its_listeners_tells_nobody(
    make_client: Callable[..., "Client"],
    fault: Exception | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Stuck(make_client().engine, fault)
    told: queue.Queue[object] = queue.Queue()
    thread = EngineThread(engine, told.put, told.put)
    thread.start()
    assert engine.entered.wait(SECONDS)
    with pytest.raises(TimeoutError):
        thread.stop(0.05)
    engine.leave.set()
    thread.stop(SECONDS)
    assert told.empty()
    assert ("RuntimeError('out of memory')" in caplog.text) == (fault is not None)


def test_an_error_that_escapes_from_a_step_is_told_once_and_ends_the_thread(
    make_client: Callable[..., "Client"],
) -> None:
    engine = make_client().engine
    failures: queue.Queue[Exception] = queue.Queue()
    fault = RuntimeError("a fault of ours")

    def broken(events: list[StepEvent]) -> None:
        raise fault

    thread = EngineThread(engine, broken, failures.put)
    engine.claim("a", 1, 1)
    engine.submit("a", [1], SamplingParams())
    thread.start()
    assert failures.get(timeout=SECONDS) is fault
    thread.stop(SECONDS)
    assert failures.empty()
