"""Promises of the decision that hold for any cluster and any request."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.model import (
    Candidate,
    Link,
    Profile,
    Promise,
    Request,
    WorkerFacts,
    WorkerLoad,
)
from crowfly_dispatcher.core.place import place

if TYPE_CHECKING:
    from tests.dispatcher.core.conftest import Make

Event = Callable[[Book], None]
fixed = settings(deadline=None, derandomize=True)  # the same cases on every run
rates = st.none() | st.floats(0.01, 1e6)
counts = st.integers(0, 60)
loads = st.builds(
    WorkerLoad,
    sequence=st.integers(1, 9),
    at=st.floats(0, 5),
    free_pages=counts,
    largest_free_run_pages=counts,
    running=counts,
    waiting_prompt_tokens=counts,
    held=counts,
    draining=st.sampled_from([False, False, False, True]),
    prefill_tokens_per_s=rates,
    step_base_ms=rates,
    step_per_sequence_ms=rates,
)
requests = st.builds(
    Request,
    id=st.text("abcdef", min_size=1, max_size=4),
    model=st.sampled_from([None, "m", "m", "n"]),
    prompt_tokens=st.integers(1, 300),
    max_tokens=st.none() | st.integers(1, 300),
    profile=st.sampled_from(Profile),
    precision=st.sampled_from([None, "fp32", "bf16"]),
    tried=st.frozensets(st.sampled_from(["w0", "w1", "w2"])),
)


@st.composite
def histories(draw: st.DrawFn, id: str) -> list[Event]:
    """What one worker's registrations, streams and reports told, in order."""
    facts = draw(
        st.builds(
            WorkerFacts,
            id=st.just(id),
            epoch=st.sampled_from(["e0", "e1"]),
            address=st.just(f"{id}:1"),
            model=st.sampled_from(["m", "m", "n"]),
            context_tokens=st.integers(100, 600),
            precision=st.sampled_from(["fp32", "bf16"]),
            page_tokens=st.sampled_from([1, 16, 64]),
            total_pages=st.integers(1, 60),
        )
    )
    promised = iter(range(1, 100))
    later: st.SearchStrategy[Event] = st.one_of(
        st.builds(_report, st.just(id), loads, st.none() | st.integers(0, 5)),
        st.just(lambda book: book.connected(id, "e0")),
        st.just(lambda book: book.lost(id, "e0")),
        st.builds(lambda pages: _promise(id, next(promised), pages), st.integers(1, 9)),
    )
    joined: Event = lambda book: book.register(facts)
    up: Event = lambda book: book.connected(id, facts.epoch)
    first = _report(id, draw(loads), None, facts.epoch)
    return [joined, up, first, *draw(st.lists(later, max_size=6))]


def _report(id: str, load: WorkerLoad, applied: int | None, epoch: str = "e0") -> Event:
    return lambda book: book.report(id, epoch, load, applied)


def _promise(id: str, sequence: int, pages: int) -> Event:
    def apply(book: Book) -> None:
        worker = book.worker(id)
        if worker and worker.link is Link.CONNECTED and pages <= worker.free_pages:
            book.promise(id, Promise(str(sequence), sequence, pages, 5))

    return apply


clusters = st.tuples(histories("w0"), histories("w1"), histories("w2"))


def _interleaved(histories: tuple[list[Event], ...], seed: int) -> Book:
    book = Book()
    waiting = [list(history) for history in histories]
    draw = random.Random(seed)
    while waiting := [history for history in waiting if history]:
        draw.choice(waiting).pop(0)(book)
        book.check()
    return book


@fixed
@given(clusters, requests)
def test_a_placement_always_fits(cluster: tuple[list[Event], ...], request: Request) -> None:
    book = _interleaved(cluster, 0)
    decision = place(book, request, 5.0)
    if isinstance(decision, Candidate):
        chosen = decision
        worker = book.worker(chosen.facts.id)
        assert worker is not None
        assert worker.load is not None
        assert request.model in (None, worker.facts.model)
        assert request.precision in (None, worker.facts.precision)
        assert worker.facts.id not in request.tried
        assert (worker.link, worker.load.draining) == (Link.CONNECTED, False)
        assert 1 <= chosen.max_tokens <= (request.max_tokens or 600)
        assert request.prompt_tokens + chosen.max_tokens <= worker.facts.context_tokens
        positions = request.prompt_tokens + chosen.max_tokens - 1
        assert positions <= chosen.pages * worker.facts.page_tokens
        assert worker.promised_pages + chosen.pages <= worker.load.free_pages
        assert chosen.pages <= worker.facts.total_pages


@fixed
@given(clusters, requests, st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_order_of_events_of_different_workers_does_not_matter(
    cluster: tuple[list[Event], ...], request: Request, one: int, other: int
) -> None:
    assert place(_interleaved(cluster, one), request, 5.0) == place(
        _interleaved(cluster, other), request, 5.0
    )


@fixed
@given(clusters, requests)
def test_the_same_book_gives_the_same_choice(
    cluster: tuple[list[Event], ...], request: Request
) -> None:
    book = _interleaved(cluster, 0)
    before = list(book.workers())
    assert place(book, request, 5.0) == place(book, request, 5.0)
    assert list(book.workers()) == before


@pytest.mark.parametrize("profile", [Profile.LATENCY_OPTIMIZED, Profile.THROUGHPUT_OPTIMIZED])
@fixed
@given(
    prompt=st.integers(1, 200),
    answer=st.integers(1, 200),
    rate=rates,
    base=rates,
    per_sequence=rates,
    salt=st.integers(0, 2**32),
)
def test_two_equal_idle_workers_share_a_burst_evenly(
    make: Make,
    profile: Profile,
    prompt: int,
    answer: int,
    rate: float | None,
    base: float | None,
    per_sequence: float | None,
    salt: int,
) -> None:
    load = make.load(
        free_pages=1000,
        prefill_tokens_per_s=rate,
        step_base_ms=base,
        step_per_sequence_ms=per_sequence,
    )
    book = make.book(
        (make.facts("a", total_pages=1000), load), (make.facts("b", total_pages=1000), load)
    )
    counts: Counter[str] = Counter()
    for n in range(32):
        request = make.request(
            f"{salt}-{n}", prompt_tokens=prompt, max_tokens=answer, profile=profile
        )
        decision = place(book, request, 0.0)
        assert isinstance(decision, Candidate)
        chosen = decision
        counts[chosen.facts.id] += 1
        book.promise(chosen.facts.id, Promise(str(n), n + 1, chosen.pages, prompt))
    assert counts["a"] in (15, 16, 17)
    assert counts.total() == 32
