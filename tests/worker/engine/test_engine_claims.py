"""Claims: exact pages, refusals with numbers, and nothing kept afterwards."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from crowfly_worker.engine.port import Claimed, RefusalKind, Refused, SamplingParams

if TYPE_CHECKING:
    from tests.worker.engine.conftest import Client

GREEDY = SamplingParams()
SECONDS = 20.0
LOADS = 2_000


@pytest.mark.parametrize(
    ("prompt", "new", "pages"),
    [(1, 1, 1), (16, 1, 1), (16, 2, 2), (1, 16, 1), (1, 17, 2), (32, 1, 2), (500, 12, 32)],
)
def test_a_claim_holds_all_positions_but_the_last_tokens(
    make_client: Callable[..., "Client"], prompt: int, new: int, pages: int
) -> None:
    engine = make_client(pages=64).engine
    assert engine.claim("a", prompt, new) == Claimed(pages)
    assert engine.load().free_pages == 64 - pages
    assert engine.load().claimed == 1
    engine.check()


def test_a_claim_over_the_context_is_refused_for_ever(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=64).engine
    assert engine.claim("a", 500, 13) == Refused(
        RefusalKind.INVALID, "500 prompt + 13 new tokens are more than the context of 512", 32, 64
    )


def test_a_claim_over_the_arena_is_refused_for_ever(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    assert engine.claim("a", 100, 100) == Refused(
        RefusalKind.INVALID, "13 pages are needed, the whole arena has 8", 13, 8
    )


@pytest.mark.parametrize(("prompt", "new"), [(0, 1), (1, 0), (-1, 5), (5, -1)])
def test_an_empty_claim_is_refused_for_ever(
    make_client: Callable[..., "Client"], prompt: int, new: int
) -> None:
    refused = make_client().engine.claim("a", prompt, new)
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.INVALID


def test_a_full_arena_refuses_for_now(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    engine.claim("a", 60, 30)
    assert engine.claim("b", 30, 30) == Refused(
        RefusalKind.NO_PAGES, "4 pages are needed, 2 are free", 4, 2
    )
    engine.release("a")
    assert engine.claim("b", 30, 30) == Claimed(4)


def test_a_claim_is_idempotent_by_id(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    assert engine.claim("a", 16, 17) == engine.claim("a", 16, 17) == Claimed(2)
    assert engine.load().free_pages == 6
    engine.submit("a", [1] * 16, GREEDY)
    assert engine.claim("a", 16, 17) == Claimed(2)
    assert engine.load().free_pages == 6


def test_another_claim_under_a_held_id_is_refused(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    engine.claim("a", 16, 17)
    assert engine.claim("a", 16, 18) == Refused(
        RefusalKind.INVALID, "the id holds another claim, of 16 + 17 tokens", 3, 6
    )


def test_release_is_for_claims_alone(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    engine.release("unknown")
    engine.claim("a", 16, 17)
    engine.submit("a", [1] * 16, GREEDY)
    engine.release("a")
    assert (engine.load().free_pages, engine.load().running) == (6, 1)
    engine.check()


def test_a_bad_submission_leaves_the_claim(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    engine.claim("a", 2, 2)
    with pytest.raises(KeyError, match="the id holds no claim"):
        engine.submit("unknown", [1], GREEDY)
    with pytest.raises(ValueError, match="has 3 tokens, 2 were claimed"):
        engine.submit("a", [1, 2, 3], GREEDY)
    assert (engine.load().claimed, engine.load().running) == (1, 0)
    engine.submit("a", [1, 2], GREEDY)
    assert (engine.load().claimed, engine.load().running) == (0, 1)


class WatchedPrompt(list[int]):
    """Calls back while it is read."""

    def __init__(self, ids: list[int], during: Callable[[], None]) -> None:
        super().__init__(ids)
        self._during = during

    def __iter__(self) -> Iterator[int]:
        self._during()
        return super().__iter__()


def test_a_prompt_is_read_while_others_use_the_engine(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(pages=8).engine
    engine.claim("a", 2, 2)

    def others_load() -> None:
        other = threading.Thread(target=engine.load)
        other.start()
        other.join(SECONDS)
        assert not other.is_alive()

    engine.submit("a", WatchedPrompt([1, 2], others_load), GREEDY)
    assert engine.load().running == 1


def test_the_load_is_of_one_moment(make_client: Callable[..., "Client"]) -> None:
    """Each claim takes one page of four tokens, in every picture."""
    engine = make_client(pages=64).engine
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    churning = threading.Event()

    def churn() -> None:
        while not churning.is_set():
            for i in range(40):
                engine.claim(str(i), 4, 1)
            for i in range(0, 40, 3):
                engine.release(str(i))
            for i in range(40):
                engine.release(str(i))

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        loads = [engine.load() for _ in range(LOADS)]
    finally:
        churning.set()
        churner.join(SECONDS)
        sys.setswitchinterval(interval)
    assert len({load.claimed for load in loads}) > 1
    for load in loads:
        assert load.free_pages == 64 - load.claimed
        assert load.largest_free_run_pages <= load.free_pages
        assert load.waiting_prompt_tokens == 4 * load.claimed


def test_the_load_counts_what_was_done(make_client: Callable[..., "Client"]) -> None:
    client = make_client(step_tokens=32, end_ids=frozenset())
    client.ask("a", [7] * 50, 5)
    assert client.engine.load().waiting_prompt_tokens == 50
    client.step()
    assert client.engine.load().waiting_prompt_tokens == 18
    client.finish()
    load = client.engine.load()
    assert (load.prefilled_tokens_total, load.generated_tokens_total) == (50, 5)
    assert (load.prefill_tokens_per_s, load.step_base_ms) == (None, None)
