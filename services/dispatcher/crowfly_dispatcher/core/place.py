"""The decision: filter, score, pick. Pure: the same book, request and time give the same choice."""

from crowfly_dispatcher.core.book import Book
from crowfly_dispatcher.core.filters import sieve
from crowfly_dispatcher.core.model import Candidate, Reason, Rejection, Request
from crowfly_dispatcher.core.rejection import rejection
from crowfly_dispatcher.core.score import pick, score


def place(book: Book, request: Request, now: float) -> Candidate | Rejection:
    """The best worker for `request` by what is known at `now` (seconds). Changes nothing."""
    workers = book.workers()
    if not workers:
        return Rejection(Reason.NO_WORKER)
    if request.model is None and len(models := sorted({w.facts.model for w in workers})) > 1:
        return Rejection(Reason.MODEL_NOT_NAMED, served=tuple(models))
    eligible, dropped = sieve(workers, request, now)
    if not eligible:
        return rejection(dropped, request)
    return pick(score(eligible, request), request)
