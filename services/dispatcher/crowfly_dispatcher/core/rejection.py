"""Why no worker may take a request: the reason, whom each filter dropped, and what was short."""

from collections import Counter
from collections.abc import Sequence

from crowfly_dispatcher.core.filters import Dropped, pages_of, tokens_of
from crowfly_dispatcher.core.model import Reason, Rejection, Request, Shortage, Worker


def rejection(dropped: Sequence[Dropped], request: Request) -> Rejection:
    """`dropped` are all workers, at least one. The one that came furthest names the reason."""
    reason = max(reason for _, reason in dropped)
    furthest = [worker for worker, its in dropped if its is reason]
    counts = Counter(reason for _, reason in dropped)
    return Rejection(
        reason,
        dropped=tuple(sorted(counts.items())),
        shortage=_shortage(furthest, request, reason),
        served=_served(furthest, reason),
    )


def _shortage(workers: Sequence[Worker], request: Request, reason: Reason) -> Shortage | None:
    if reason is Reason.CONTEXT:
        longest = max(worker.facts.context_tokens for worker in workers)
        return Shortage(tokens_of(request), longest, "tokens")
    if reason is Reason.ARENA:
        return _least([_short_of(each, each.facts.total_pages, request) for each in workers])
    if reason is Reason.MEMORY:
        return _least([_short_of(each, each.free_pages, request) for each in workers])
    return None


def _short_of(worker: Worker, available: int, request: Request) -> Shortage:
    unit = f"pages of {worker.facts.page_tokens} tokens"
    return Shortage(pages_of(worker.facts, request), available, unit)


def _least(shortages: Sequence[Shortage]) -> Shortage:
    return min(shortages, key=lambda each: (each.needed - each.available, each.unit))


def _served(workers: Sequence[Worker], reason: Reason) -> tuple[str, ...]:
    if reason is Reason.MODEL:
        return tuple(sorted({worker.facts.model for worker in workers}))
    if reason is Reason.PRECISION:
        return tuple(sorted({worker.facts.precision for worker in workers}))
    return ()
