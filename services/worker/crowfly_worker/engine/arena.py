"""Who owns which page of the KV cache."""

from bisect import bisect_left, insort
from itertools import pairwise


class PageArena:
    """Pages 0 to total - 1. Contiguous runs first, scattered pages as the fallback.

    For one thread at a time: a running engine's roster guards it with its own lock, so that pages and
    their holders are always seen together. Owners are tickets: no message repeats one.
    """

    def __init__(self, total_pages: int) -> None:
        self.total_pages = total_pages
        self._free: list[tuple[int, int]] = [(0, total_pages)]  # (start, stop), sorted, apart
        self._claims: dict[str, tuple[int, ...]] = {}

    @property
    def free_pages(self) -> int:
        return sum(stop - start for start, stop in self._free)

    @property
    def largest_free_run(self) -> int:
        return max((stop - start for start, stop in self._free), default=0)

    def claim(self, owner: str, pages: int) -> tuple[int, ...] | None:
        """Exactly `pages` pages, at least one, or None (and no change) if fewer are free.

        Raises `ValueError` if the owner holds some already.
        """
        if owner in self._claims:
            raise ValueError("the owner holds pages already")
        if self.free_pages < pages:
            return None
        claimed = self._take_run(pages) or self._take_holes(pages)
        self._claims[owner] = claimed
        return claimed

    def release(self, owner: str) -> None:
        """Give back all of the owner's pages. Raises `KeyError` if it holds none."""
        pages = self._claims.pop(owner, None)
        if pages is None:
            raise KeyError("the owner holds no pages")
        for page in pages:
            self._put_back(page)

    def check(self) -> None:
        """Raises `AssertionError` unless free and claimed pages are all pages, each once."""
        free = [page for start, stop in self._free for page in range(start, stop)]
        claimed = [page for pages in self._claims.values() for page in pages]
        if sorted(free + claimed) != list(range(self.total_pages)):
            raise AssertionError(f"pages lost or doubled: free {free}, claimed {claimed}")
        ends = [bound for run in self._free for bound in run]
        if any(a >= b for a, b in pairwise(ends)):
            raise AssertionError(f"free runs touch, overlap or are out of order: {self._free}")

    def _take_run(self, pages: int) -> tuple[int, ...] | None:
        """The start of the smallest run that is long enough."""
        fitting = [(stop - start, start) for start, stop in self._free if stop - start >= pages]
        if not fitting:
            return None
        length, start = min(fitting)
        self._free.remove((start, start + length))
        if length > pages:
            insort(self._free, (start + pages, start + length))
        return tuple(range(start, start + pages))

    def _take_holes(self, pages: int) -> tuple[int, ...]:
        """The smallest runs first: a gathered sequence costs the same however scattered it is,
        and the longest runs stay whole for others."""
        taken: list[int] = []
        for start, stop in sorted(self._free, key=lambda run: run[1] - run[0]):
            count = min(stop - start, pages - len(taken))
            self._free.remove((start, stop))
            taken += range(start, start + count)
            if start + count < stop:
                insort(self._free, (start + count, stop))
            if len(taken) == pages:
                break
        return tuple(sorted(taken))

    def _put_back(self, page: int) -> None:
        """Join the page with the free runs that it touches."""
        start, stop = page, page + 1
        at = bisect_left(self._free, (start, stop))
        if at < len(self._free) and self._free[at][0] == stop:
            stop = self._free.pop(at)[1]
        if at > 0 and self._free[at - 1][1] == start:
            start = self._free.pop(at - 1)[0]
        insort(self._free, (start, stop))
