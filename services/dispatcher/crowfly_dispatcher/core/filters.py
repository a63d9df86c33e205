"""May this worker take this request? The first filter that says no names the reason."""

from collections.abc import Collection
from typing import NamedTuple

from crowfly_dispatcher.core.model import Link, Reason, Request, Worker, WorkerFacts, WorkerLoad

# Workers report at least once a second. Three missed reports: what is known of it is a guess.
FRESH_SECONDS = 3.0


class Eligible(NamedTuple):
    """A worker that passed, with what the request takes there."""

    worker: Worker
    load: WorkerLoad
    max_tokens: int
    pages: int


Dropped = tuple[Worker, Reason]


def sieve(
    workers: Collection[Worker], request: Request, now: float
) -> tuple[list[Eligible], list[Dropped]]:
    """Those that may take it, and the others with their reasons."""
    eligible: list[Eligible] = []
    dropped: list[Dropped] = []
    for worker in workers:
        verdict = judge(worker, request, now)
        if isinstance(verdict, Eligible):
            eligible.append(verdict)
        else:
            dropped.append((worker, verdict))
    return eligible, dropped


def judge(worker: Worker, request: Request, now: float) -> Eligible | Reason:
    """One worker. What can never be is told before what cannot be now."""
    facts, load = worker.facts, worker.load
    if request.model not in (None, facts.model):
        return Reason.MODEL
    if request.precision not in (None, facts.precision):
        return Reason.PRECISION
    if tokens_of(request) > facts.context_tokens:
        return Reason.CONTEXT
    pages = pages_of(facts, request)
    if pages > facts.total_pages:
        return Reason.ARENA
    if worker.link is not Link.CONNECTED or load is None:
        return Reason.NOT_CONNECTED
    if load.draining:
        return Reason.DRAINING
    if now - load.at > FRESH_SECONDS:
        return Reason.SILENT
    if pages > worker.free_pages:
        return Reason.MEMORY
    if facts.id in request.tried:
        return Reason.TRIED
    return Eligible(worker, load, max_tokens_of(facts, request), pages)


def max_tokens_of(facts: WorkerFacts, request: Request) -> int:
    """As asked, or the rest of this worker's context."""
    if request.max_tokens is None:
        return facts.context_tokens - request.prompt_tokens
    return request.max_tokens


def pages_of(facts: WorkerFacts, request: Request) -> int:
    """Pages of all positions; the last token is given out and never fed back."""
    positions = request.prompt_tokens + max_tokens_of(facts, request) - 1
    return -(-positions // facts.page_tokens)


def tokens_of(request: Request) -> int:
    """The least that prompt and answer take of a context."""
    return request.prompt_tokens + (1 if request.max_tokens is None else request.max_tokens)
