"""What a place is predicted to cost, and which one wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.model import Candidate, Profile, Request
from crowfly_dispatcher.core.place import place

if TYPE_CHECKING:
    from tests.dispatcher.core.conftest import Make


def _chosen(book: Book, request: Request) -> Candidate:
    decision = place(book, request, 0.0)
    assert isinstance(decision, Candidate)
    return decision


def test_the_terms_are_milliseconds_by_the_workers_own_rates(make: Make) -> None:
    load = make.load(
        waiting=200,
        running=3,
        held=1,
        prefill_tokens_per_s=1000.0,
        step_base_ms=10.0,
        step_per_sequence_ms=2.0,
    )
    book = make.book((make.facts(), load))
    book.promise("w0", make.promise("a", 1, pages=1, prompt=50))
    chosen = _chosen(book, make.request(prompt_tokens=100, max_tokens=20))
    assert chosen.queue_ms == pytest.approx(250.0)
    assert chosen.prefill_ms == pytest.approx(100.0)
    assert chosen.decode_ms == pytest.approx(20 * (10.0 + 6 * 2.0))
    assert chosen.ttft_ms == pytest.approx(350.0)
    assert chosen.total_ms == pytest.approx(790.0)


def test_a_short_prompt_takes_a_whole_step(make: Make) -> None:
    """The step it goes into reads all weights, and serves the running sequences too."""
    load = make.load(
        running=3, prefill_tokens_per_s=1000.0, step_base_ms=10.0, step_per_sequence_ms=2.0
    )
    chosen = _chosen(make.book((make.facts(), load)), make.request(prompt_tokens=5))
    assert chosen.prefill_ms == 10.0 + 4 * 2.0


def test_the_prompt_of_a_claim_counts_once_promised_or_reported(make: Make) -> None:
    book = make.book((make.facts(), make.load(1, waiting=200)))
    book.promise("w0", make.promise("a", 1, pages=1, prompt=50))
    promised = _chosen(book, make.request(prompt_tokens=100))
    book.report("w0", "e0", make.load(2, waiting=250, held=1), applied=1)
    reported = _chosen(book, make.request(prompt_tokens=100))
    assert (promised.queue_ms, reported.queue_ms) == (250.0, 250.0)
    assert promised.decode_ms == reported.decode_ms == 7 * (10.0 + 2 * 1.0)


def test_an_unknown_rate_is_the_slowest_known_one(make: Make) -> None:
    unknown = make.load(prefill_tokens_per_s=None, step_base_ms=None, step_per_sequence_ms=None)
    book = make.book(
        (make.facts("unknown"), unknown),
        (make.facts("fast"), make.load(prefill_tokens_per_s=500.0)),
        (make.facts("slow"), make.load(prefill_tokens_per_s=50.0, step_base_ms=90.0)),
    )
    request = make.request(prompt_tokens=10, max_tokens=7)
    assert _chosen(book, request).facts.id == "fast"
    book.unregister("fast")
    alone = {_chosen(book, make.request(str(n))).total_ms for n in range(20)}
    assert alone == {200.0 + 7 * 91.0}


def test_without_any_known_rate_the_assumed_ones_are_slow(make: Make) -> None:
    load = make.load(prefill_tokens_per_s=None, step_base_ms=None, step_per_sequence_ms=None)
    chosen = _chosen(make.book((make.facts(), load)), make.request(prompt_tokens=10, max_tokens=2))
    assert (chosen.ttft_ms, chosen.total_ms) == (110.0, 110.0 + 2 * 110.0)


def test_latency_takes_the_first_token_and_throughput_the_last(make: Make) -> None:
    book = make.book(
        (make.facts("first"), make.load(prefill_tokens_per_s=2000.0, step_base_ms=50.0)),
        (make.facts("last"), make.load(prefill_tokens_per_s=1000.0, step_base_ms=5.0)),
    )
    latency = make.request(prompt_tokens=110, profile=Profile.LATENCY_OPTIMIZED)
    throughput = make.request(prompt_tokens=110, profile=Profile.THROUGHPUT_OPTIMIZED)
    assert _chosen(book, latency).facts.id == "first"
    assert _chosen(book, throughput).facts.id == "last"


def test_latency_looks_at_the_total_when_first_tokens_are_alike(make: Make) -> None:
    book = make.book(
        (make.facts("crowded"), make.load(running=9)), (make.facts("idle"), make.load(running=1))
    )
    assert _chosen(book, make.request()).facts.id == "idle"


def test_memory_efficient_takes_the_tightest_hole(make: Make) -> None:
    book = make.book(
        (make.facts("exact"), make.load(hole_pages=8, waiting=1000)),
        (make.facts("loose"), make.load(hole_pages=9)),
        (make.facts("small"), make.load(hole_pages=7)),
    )
    request = make.request(
        prompt_tokens=100, max_tokens=20, profile=Profile.MEMORY_EFFICIENT
    )  # 119 positions: 8 pages
    assert _chosen(book, request).facts.id == "exact"
    book.promise("exact", make.promise("a", 1, pages=1))
    assert _chosen(book, request).facts.id == "loose"
    book.unregister("exact")
    book.unregister("loose")
    assert _chosen(book, request).hole_pages is None  # scattered pages, better than no place


def test_memory_efficient_takes_the_faster_of_two_equal_holes(make: Make) -> None:
    book = make.book(
        (make.facts("busy"), make.load(hole_pages=8, waiting=500)),
        (make.facts("free"), make.load(hole_pages=8)),
    )
    request = make.request(profile=Profile.MEMORY_EFFICIENT)
    assert _chosen(book, request).facts.id == "free"


def test_within_one_percent_two_workers_are_equal(make: Make) -> None:
    book = make.book(
        (make.facts("a"), make.load(prefill_tokens_per_s=1000.0)),
        (make.facts("b"), make.load(prefill_tokens_per_s=1009.0)),
    )
    requests = [make.request(f"r{n}", prompt_tokens=100) for n in range(20)]
    chosen = {_chosen(book, request).facts.id for request in requests}
    assert chosen == {"a", "b"}
    book.report("b", "e0", make.load(2, prefill_tokens_per_s=1020.0))
    chosen = {_chosen(book, request).facts.id for request in requests}
    assert chosen == {"b"}


def test_equal_workers_share_by_request_id(make: Make) -> None:
    """Many dispatchers with the same map and nothing promised must not all choose one worker."""
    book = make.book(*((make.facts(f"w{n}"), make.load()) for n in range(8)))
    counts = dict.fromkeys((f"w{n}" for n in range(8)), 0)
    for n in range(800):
        counts[_chosen(book, make.request(f"request-{n}")).facts.id] += 1
    assert min(counts.values()) > 70
    assert max(counts.values()) < 130
