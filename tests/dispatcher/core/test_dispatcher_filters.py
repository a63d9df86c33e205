"""Which workers may take a request, and what is said when none may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.filters import FRESH_SECONDS
from crowfly_dispatcher.core.model import (
    Candidate,
    Reason,
    Rejection,
    Request,
    Shortage,
)
from crowfly_dispatcher.core.place import place

if TYPE_CHECKING:
    from tests.dispatcher.core.conftest import Make


def _rejected(book: Book, request: Request, now: float = 0.0) -> Rejection:
    decision = place(book, request, now)
    assert isinstance(decision, Rejection)
    return decision


def _placed(book: Book, request: Request, now: float = 0.0) -> Candidate:
    decision = place(book, request, now)
    assert isinstance(decision, Candidate)
    return decision


def test_without_workers_there_is_no_place(make: Make) -> None:
    assert _rejected(Book(), make.request()) == Rejection(Reason.NO_WORKER)


def test_an_unknown_model_is_told_the_served_ones(make: Make) -> None:
    book = make.book(
        (make.facts("a", model="y"), make.load()), (make.facts("b", model="x"), make.load())
    )
    assert _rejected(book, make.request(model="z")) == Rejection(
        Reason.MODEL, dropped=((Reason.MODEL, 2),), served=("x", "y")
    )


def test_no_model_means_the_only_one(make: Make) -> None:
    book = make.book((make.facts("a"), make.load()), (make.facts("b"), make.load()))
    assert _placed(book, make.request(model=None)).facts.model == "m"
    book.register(make.facts("c", model="other"))
    assert _rejected(book, make.request(model=None)) == Rejection(
        Reason.MODEL_NOT_NAMED, served=("m", "other")
    )


def test_a_precision_is_a_demand(make: Make) -> None:
    book = make.book(
        (make.facts("a", precision="fp32"), make.load()),
        (make.facts("b", precision="bf16"), make.load()),
    )
    assert _placed(book, make.request(precision="bf16")).facts.id == "b"
    assert _rejected(book, make.request(precision="fp16")) == Rejection(
        Reason.PRECISION, dropped=((Reason.PRECISION, 2),), served=("bf16", "fp32")
    )


@pytest.mark.parametrize(
    ("prompt", "answer", "fits"), [(1000, 24, True), (1000, 25, False), (1023, None, True)]
)
def test_prompt_and_answer_share_the_context(
    make: Make, prompt: int, answer: int | None, fits: bool
) -> None:
    book = make.book((make.facts(context_tokens=1024), make.load()))
    decision = place(book, make.request(prompt_tokens=prompt, max_tokens=answer), 0.0)
    assert isinstance(decision, Candidate) == fits


def test_over_the_context_says_by_how_much(make: Make) -> None:
    book = make.book(
        (make.facts("a", context_tokens=500), make.load()),
        (make.facts("b", context_tokens=1024), make.load()),
    )
    rejection = _rejected(book, make.request(prompt_tokens=1024, max_tokens=None))
    assert rejection.reason is Reason.CONTEXT
    assert rejection.shortage == Shortage(1025, 1024, "tokens")


def test_over_every_arena_is_never_and_not_just_not_now(make: Make) -> None:
    book = make.book(
        (make.facts("a", total_pages=3), make.load(free_pages=0)),
        (make.facts("b", total_pages=4), make.load(free_pages=0)),
    )
    rejection = _rejected(book, make.request(prompt_tokens=60, max_tokens=6))
    assert rejection.reason is Reason.ARENA
    assert rejection.shortage == Shortage(5, 4, "pages of 16 tokens")
    assert _rejected(book, make.request(prompt_tokens=60, max_tokens=5)).reason is Reason.MEMORY


def test_what_is_short_now_is_said_in_pages_of_the_nearest_worker(make: Make) -> None:
    book = make.book(
        (make.facts("a"), make.load(free_pages=3)), (make.facts("b"), make.load(free_pages=5))
    )
    book.promise("b", make.promise("x", 1, pages=1))
    rejection = _rejected(book, make.request(prompt_tokens=80, max_tokens=2))
    assert rejection == Rejection(
        Reason.MEMORY,
        dropped=((Reason.MEMORY, 2),),
        shortage=Shortage(6, 4, "pages of 16 tokens"),
    )


def test_the_last_token_needs_no_position(make: Make) -> None:
    book = make.book((make.facts(), make.load(free_pages=1)))
    assert _placed(book, make.request(prompt_tokens=10, max_tokens=7)).pages == 1
    assert _rejected(book, make.request(prompt_tokens=10, max_tokens=8)).reason is Reason.MEMORY


def test_no_max_tokens_claims_the_rest_of_the_context(make: Make) -> None:
    book = make.book((make.facts(context_tokens=1024), make.load()))
    chosen = _placed(book, make.request(prompt_tokens=24, max_tokens=None))
    assert (chosen.max_tokens, chosen.pages) == (1000, 64)


def test_only_a_connected_worker_is_chosen(make: Make) -> None:
    book = Book()
    book.register(make.facts())
    book.report("w0", "e0", make.load())
    assert _rejected(book, make.request()).reason is Reason.NOT_CONNECTED
    book.connected("w0", "e0")
    assert _placed(book, make.request()).facts.id == "w0"
    book.lost("w0", "e0")
    assert _rejected(book, make.request()).reason is Reason.NOT_CONNECTED


def test_a_connected_worker_without_a_report_is_not_chosen(make: Make) -> None:
    book = Book()
    book.register(make.facts())
    book.connected("w0", "e0")
    assert _rejected(book, make.request()).reason is Reason.NOT_CONNECTED


def test_a_draining_worker_is_not_chosen(make: Make) -> None:
    book = make.book((make.facts(), make.load(draining=True)))
    assert _rejected(book, make.request()).reason is Reason.DRAINING


def test_a_worker_that_fell_silent_is_not_chosen(make: Make) -> None:
    book = make.book((make.facts(), make.load(at=10.0)))
    assert _placed(book, make.request(), now=10.0 + FRESH_SECONDS).facts.id == "w0"
    assert _rejected(book, make.request(), now=10.1 + FRESH_SECONDS).reason is Reason.SILENT


def test_a_worker_that_refused_is_not_asked_again(make: Make) -> None:
    book = make.book((make.facts("a"), make.load()), (make.facts("b"), make.load()))
    assert _placed(book, make.request(tried=frozenset("a"))).facts.id == "b"
    assert _rejected(book, make.request(tried=frozenset("ab"))).reason is Reason.TRIED


def test_a_rejection_counts_whom_each_filter_dropped(make: Make) -> None:
    book = make.book(
        (make.facts("a", model="other"), make.load()),
        (make.facts("b", precision="bf16"), make.load()),
        (make.facts("c", total_pages=1), make.load()),
        (make.facts("d"), make.load(draining=True)),
        (make.facts("e"), make.load(draining=True)),
        (make.facts("f"), make.load(free_pages=0)),
    )
    rejection = _rejected(book, make.request(precision="fp32", prompt_tokens=20))
    assert rejection.reason is Reason.MEMORY
    assert rejection.dropped == (
        (Reason.MODEL, 1),
        (Reason.PRECISION, 1),
        (Reason.ARENA, 1),
        (Reason.DRAINING, 2),
        (Reason.MEMORY, 1),
    )
