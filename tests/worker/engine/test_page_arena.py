"""The page arena never loses, doubles or invents a page, whatever is claimed and released."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from crowfly_worker.engine.arena import PageArena

TOTAL = 24


class ArenaMachine(RuleBasedStateMachine):
    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.arena = PageArena(TOTAL)
        self.held: dict[str, tuple[int, ...]] = {}
        self.names = iter(range(1_000_000))

    @rule(target=owners, pages=st.integers(1, TOTAL + 1))
    def claim(self, pages: int) -> str:
        owner = f"owner-{next(self.names)}"
        free, run = self.arena.free_pages, self.arena.largest_free_run
        claimed = self.arena.claim(owner, pages)
        assert (claimed is not None) == (pages <= free)
        if claimed is not None:
            self.held[owner] = claimed
            assert len(set(claimed)) == pages
            contiguous = claimed == tuple(range(claimed[0], claimed[0] + pages))
            assert contiguous or pages > run, "a long enough run was not used"
        return owner

    @rule(owner=consumes(owners))
    def release(self, owner: str) -> None:
        if owner in self.held:
            self.arena.release(owner)
            del self.held[owner]
        else:
            with pytest.raises(KeyError, match="the owner holds no pages"):
                self.arena.release(owner)

    @invariant()
    def every_page_is_free_or_held_once(self) -> None:
        self.arena.check()
        held = {page for pages in self.held.values() for page in pages}
        assert self.arena.free_pages == TOTAL - len(held)
        assert self.arena.largest_free_run == longest_run(set(range(TOTAL)) - held)


def longest_run(pages: set[int]) -> int:
    longest = run = 0
    for page in range(TOTAL):
        run = run + 1 if page in pages else 0
        longest = max(longest, run)
    return longest


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_claim_takes_the_smallest_run_that_fits() -> None:
    arena = PageArena(20)
    for owner, pages in [("a", 4), ("wall-1", 1), ("b", 3), ("wall-2", 1), ("c", 11)]:
        arena.claim(owner, pages)
    for owner in ("a", "b", "c"):
        arena.release(owner)
    assert arena.claim("fits-b", 3) == (5, 6, 7)


def test_a_scattered_claim_spares_the_longest_run() -> None:
    arena = PageArena(10)
    for owner, pages in [("a", 1), ("wall-1", 1), ("b", 2), ("wall-2", 1), ("c", 5)]:
        arena.claim(owner, pages)
    for owner in ("a", "b", "c"):
        arena.release(owner)
    assert arena.claim("big", 6) == (0, 2, 3, 5, 6, 7)
    assert arena.largest_free_run == 2


def test_an_owner_claims_once() -> None:
    arena = PageArena(4)
    arena.claim("a", 1)
    with pytest.raises(ValueError, match="the owner holds pages already"):
        arena.claim("a", 1)


def test_a_lost_page_is_found_by_check() -> None:
    arena = PageArena(4)
    arena.claim("a", 2)
    arena._claims["a"] = arena._claims["a"][:1]
    with pytest.raises(AssertionError, match="lost or doubled"):
        arena.check()
