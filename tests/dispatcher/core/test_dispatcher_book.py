"""The dispatcher's book: the last reports, and what was promised since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.model import Link, Promise, Worker, WorkerFacts, WorkerLoad

if TYPE_CHECKING:
    from tests.dispatcher.core.conftest import Make


def _worker(book: Book, id: str = "w0") -> Worker:
    worker = book.worker(id)
    assert worker is not None
    return worker


def test_a_promise_is_taken_off_until_a_report_includes_it(make: Make) -> None:
    book = make.book((make.facts(), make.load(1, free_pages=100)))
    book.promise("w0", make.promise("a", 1, pages=30, prompt=12))
    book.promise("w0", make.promise("b", 2, pages=5, prompt=3))
    worker = _worker(book)
    assert (worker.free_pages, worker.promised_prompt_tokens, worker.promised_sequences) == (
        65,
        15,
        2,
    )
    book.report("w0", "e0", make.load(2, free_pages=70), applied=1)
    worker = _worker(book)
    assert (worker.free_pages, worker.promised_pages, worker.promised_sequences) == (65, 5, 1)
    book.report("w0", "e0", make.load(3, free_pages=65), applied=2)
    assert (_worker(book).free_pages, _worker(book).promised_pages) == (65, 0)
    book.check()


def test_a_refused_promise_gives_its_pages_back_once(make: Make) -> None:
    book = make.book((make.facts(), make.load()))
    book.promise("w0", make.promise("a", 1, pages=30))
    book.release("w0", "a")
    book.release("w0", "a")
    book.release("nobody", "a")
    assert _worker(book).free_pages == 100
    book.check()


def test_a_refusal_for_want_of_pages_corrects_the_book_until_the_next_report(make: Make) -> None:
    book = make.book((make.facts(), make.load(1, free_pages=100)))
    book.promise("w0", make.promise("before", 1, pages=10))
    book.promise("w0", make.promise("refused", 2, pages=30))
    book.promise("w0", make.promise("after", 3, pages=5))
    book.release_short("w0", "refused", free_pages=20)  # without the 10, with the 5
    worker = _worker(book)
    assert (worker.free_pages, worker.promised_pages) == (15, 15)
    assert worker.load == make.load(1, free_pages=30)
    book.report("w0", "e0", make.load(2, free_pages=60), applied=3)
    assert _worker(book).free_pages == 60
    book.check()


def test_a_refusal_never_makes_the_book_more_hopeful(make: Make) -> None:
    book = make.book((make.facts(), make.load(free_pages=50, hole_pages=8)))
    book.promise("w0", make.promise("a", 1, pages=30))
    book.release_short("w0", "a", free_pages=90)
    book.release_short("w0", "a", free_pages=1)
    book.release_short("nobody", "a", free_pages=1)
    assert _worker(book).load == make.load(free_pages=50, hole_pages=8)
    assert _worker(book).free_pages == 50
    book.check()


def test_more_pages_than_reported_are_never_promised(make: Make) -> None:
    book = make.book((make.facts(), make.load(free_pages=10)))
    book.promise("w0", make.promise("a", 1, pages=6))
    with pytest.raises(ValueError, match="w0 does not have 5 free pages"):
        book.promise("w0", make.promise("b", 2, pages=5))
    with pytest.raises(ValueError, match="nobody does not have 1 free pages"):
        book.promise("nobody", make.promise("b", 2, pages=1))
    with pytest.raises(ValueError, match="promised twice at w0"):
        book.promise("w0", make.promise("a", 2, pages=1))
    assert _worker(book).promised_pages == 6


def test_the_newest_report_wins_from_whatever_source(make: Make) -> None:
    book = make.book((make.facts(), make.load(5, at=5.0, free_pages=50)))
    book.report("w0", "e0", make.load(4, at=9.0, free_pages=40))
    assert _worker(book).load == make.load(5, at=5.0, free_pages=50)
    book.report("w0", "e0", make.load(6, at=1.0, free_pages=60))
    assert _worker(book).load == make.load(6, at=1.0, free_pages=60)


def test_the_same_report_heard_again_is_true_from_then(make: Make) -> None:
    book = make.book((make.facts(), make.load(5, at=5.0)))
    book.report("w0", "e0", make.load(5, at=6.0))
    book.report("w0", "e0", make.load(5, at=4.0))
    assert _worker(book).load == make.load(5, at=6.0)


def test_an_old_report_still_tells_what_it_includes(make: Make) -> None:
    book = make.book((make.facts(), make.load(5, free_pages=90)))
    book.promise("w0", make.promise("a", 1, pages=10))
    book.report("w0", "e0", make.load(7, free_pages=80))
    assert _worker(book).free_pages == 70  # nobody said yet that the 80 are without the claim
    book.report("w0", "e0", make.load(6, free_pages=80), applied=1)
    assert _worker(book).free_pages == 80


def test_a_foreign_epoch_or_worker_changes_nothing(make: Make) -> None:
    book = make.book((make.facts(), make.load(1)))
    before = _worker(book)
    book.report("w0", "e1", make.load(9, free_pages=1))
    book.connected("w0", "e1")
    book.lost("w0", "e1")
    book.report("nobody", "e0", make.load(9))
    book.lost("nobody", "e0")
    assert _worker(book) == before
    assert [worker.facts.id for worker in book.workers()] == ["w0"]


def test_a_new_epoch_starts_from_nothing_and_the_same_one_changes_nothing(make: Make) -> None:
    book = make.book((make.facts(), make.load()))
    book.promise("w0", make.promise("a", 1, pages=30))
    before = _worker(book)
    book.register(make.facts())
    assert _worker(book) == before
    book.register(make.facts(epoch="e1"))
    assert _worker(book) == Worker(make.facts(epoch="e1"), Link.CONNECTING, None, 0, 0, 0)
    assert _worker(book).free_pages == 0
    book.check()


def test_a_lost_stream_makes_the_worker_suspect_and_ends_its_promises(make: Make) -> None:
    book = make.book((make.facts(), make.load()))
    book.promise("w0", make.promise("a", 1, pages=30))
    book.lost("w0", "e0")
    assert (_worker(book).link, _worker(book).promised_pages) == (Link.SUSPECT, 0)
    book.connected("w0", "e0")
    book.promise("w0", make.promise("b", 1, pages=4))
    assert (_worker(book).link, _worker(book).promised_pages) == (Link.CONNECTED, 4)
    book.check()


def test_a_worker_that_left_is_forgotten(make: Make) -> None:
    book = make.book((make.facts(), make.load()))
    book.unregister("w0")
    book.unregister("w0")
    assert book.worker("w0") is None
    book.check()


class OneDispatcherAndAnHonestWorker(RuleBasedStateMachine):
    """Claims travel in order, reports in any, each on its way for any time. Whatever the delays,
    what the book believes free is never more than what the worker really has."""

    total = 50

    @initialize()
    def join(self) -> None:
        self.book = Book()
        self.book.register(WorkerFacts("w", "e", "a:1", "m", 100, "fp32", 1, 50))
        self.book.connected("w", "e")
        self.sent = self.applied = self.reported = 0
        self.used: dict[str, int] = {}
        self.opens: list[Promise] = []
        self.reports: list[tuple[WorkerLoad, int | None]] = []
        self.report()
        self.deliver(by_control=True, overtaking=0)

    def _free(self) -> int:
        return self.total - sum(self.used.values())

    @rule(pages=st.integers(1, 20))
    def claim(self, pages: int) -> None:
        worker = _worker(self.book, "w")
        if pages <= worker.free_pages:
            self.sent += 1
            promise = Promise(str(self.sent), self.sent, pages, 1)
            self.book.promise("w", promise)
            self.opens.append(promise)

    @precondition(lambda self: self.opens)
    @rule()
    def apply(self) -> None:
        promise = self.opens.pop(0)
        assert promise.pages <= self._free(), "an honest worker never has to refuse"
        self.used[promise.reservation] = promise.pages
        self.applied = promise.open_sequence

    @rule()
    def report(self) -> None:
        self.reported += 1
        load = WorkerLoad(self.reported, 0.0, self._free(), self._free(), 0, 0, 0, False)
        self.reports.append((load, self.applied))

    @precondition(lambda self: self.reports)
    @rule(by_control=st.booleans(), overtaking=st.integers(0, 2))
    def deliver(self, by_control: bool, overtaking: int) -> None:
        load, applied = self.reports.pop(min(overtaking, len(self.reports) - 1))
        self.book.report("w", "e", load, applied if by_control else None)

    @precondition(lambda self: self.used)
    @rule()
    def end(self) -> None:
        self.used.pop(next(iter(self.used)))

    @invariant()
    def the_book_is_never_too_hopeful(self) -> None:
        self.book.check()
        underway = sum(promise.pages for promise in self.opens)
        assert _worker(self.book, "w").free_pages <= self._free() - underway


TestOneDispatcherAndAnHonestWorker = OneDispatcherAndAnHonestWorker.TestCase
TestOneDispatcherAndAnHonestWorker.settings = settings(deadline=None, derandomize=True)
