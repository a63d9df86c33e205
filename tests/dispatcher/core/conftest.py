"""Builders of the core's values."""

import pytest

from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.model import (
    Profile,
    Promise,
    Request,
    WorkerFacts,
    WorkerLoad,
)


class Make:
    """Values with everyday defaults: one model, 16-token pages, 100 pages, nothing running."""

    def facts(
        self,
        id: str = "w0",
        *,
        epoch: str = "e0",
        model: str = "m",
        context_tokens: int = 1024,
        precision: str = "fp32",
        total_pages: int = 100,
        page_tokens: int = 16,
    ) -> WorkerFacts:
        return WorkerFacts(
            id=id,
            epoch=epoch,
            address=f"{id}:1",
            model=model,
            context_tokens=context_tokens,
            precision=precision,
            page_tokens=page_tokens,
            total_pages=total_pages,
        )

    def load(
        self,
        sequence: int = 1,
        *,
        at: float = 0.0,
        free_pages: int = 100,
        hole_pages: int | None = None,
        running: int = 0,
        waiting: int = 0,
        held: int = 0,
        draining: bool = False,
        prefill_tokens_per_s: float | None = 1000.0,
        step_base_ms: float | None = 10.0,
        step_per_sequence_ms: float | None = 1.0,
    ) -> WorkerLoad:
        return WorkerLoad(
            sequence=sequence,
            at=at,
            free_pages=free_pages,
            largest_free_run_pages=free_pages if hole_pages is None else hole_pages,
            running=running,
            waiting_prompt_tokens=waiting,
            held=held,
            draining=draining,
            prefill_tokens_per_s=prefill_tokens_per_s,
            step_base_ms=step_base_ms,
            step_per_sequence_ms=step_per_sequence_ms,
        )

    def request(
        self,
        id: str = "r0",
        *,
        model: str | None = "m",
        prompt_tokens: int = 10,
        max_tokens: int | None = 7,
        profile: Profile = Profile.LATENCY_OPTIMIZED,
        precision: str | None = None,
        tried: frozenset[str] = frozenset(),
    ) -> Request:
        return Request(id, model, prompt_tokens, max_tokens, profile, precision, tried)

    def promise(self, reservation: str, sequence: int, pages: int, prompt: int = 10) -> Promise:
        return Promise(reservation, sequence, pages, prompt)

    def book(self, *workers: tuple[WorkerFacts, WorkerLoad]) -> Book:
        """A book with these workers connected."""
        book = Book()
        for facts, load in workers:
            book.register(facts)
            book.connected(facts.id, facts.epoch)
            book.report(facts.id, facts.epoch, load)
        return book


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()
