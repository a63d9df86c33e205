"""Who holds pages: claims that wait for their caller, and sequences that run."""

import threading
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from crowfly_worker.engine.arena import PageArena
from crowfly_worker.engine.port import (
    Claimed,
    EngineFacts,
    RefusalKind,
    Refused,
    SamplingParams,
)
from crowfly_worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Claim:
    prompt_tokens: int
    max_tokens: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of one moment; the words are `port.EngineLoad`'s."""

    free_pages: int
    largest_free_run_pages: int
    claimed: int
    running: int
    waiting_prompt_tokens: int


class Roster:
    """Every method may be called from any thread; `port.Engine` says what each one means. The arena
    is the roster's alone. Ids are tickets: no message repeats one."""

    def __init__(self, facts: EngineFacts, arena: PageArena) -> None:
        self._facts = facts
        self._arena = arena
        self._changed = threading.Condition()  # guards what follows
        self._claims: dict[str, _Claim] = {}
        self._sequences: dict[str, Sequence] = {}  # in the order of their submission

    def claim(self, id: str, prompt_tokens: int, max_tokens: int) -> Claimed | Refused:
        # The last token is never fed back, so it needs no place.
        pages = -(-(prompt_tokens + max_tokens - 1) // self._facts.page_tokens)
        with self._changed:
            held = self._held(id)
            if held == (prompt_tokens, max_tokens):
                return Claimed(pages)
            never = self._why_never(prompt_tokens, max_tokens, pages)
            if held is not None:
                never = f"the id holds another claim, of {held[0]} + {held[1]} tokens"
            if never is not None:
                return Refused(RefusalKind.INVALID, never, pages, self._arena.free_pages)
            taken = self._arena.claim(id, pages)
            if taken is None:
                return _no_pages(pages, self._arena.free_pages)
            self._claims[id] = _Claim(prompt_tokens, max_tokens, taken)
            return Claimed(pages)

    def release(self, id: str) -> None:
        with self._changed:
            if self._claims.pop(id, None) is not None:
                self._arena.release(id)

    def submit(self, id: str, prompt: Ids[int], sampling: SamplingParams) -> None:
        prompt = tuple(prompt)
        with self._changed:
            claim = self._claims.get(id)
            if claim is None:
                raise KeyError("the id holds no claim")
            if len(prompt) != claim.prompt_tokens:
                raise ValueError(
                    f"the prompt has {len(prompt)} tokens, {claim.prompt_tokens} were claimed"
                )
            del self._claims[id]
            self._sequences[id] = Sequence(id, prompt, claim.max_tokens, claim.pages, sampling)
            self._changed.notify_all()

    def cancel(self, id: str) -> None:
        with self._changed:
            if id in self._sequences:
                self._sequences[id].cancelled = True

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._sequences), seconds)

    def snapshot(self) -> Snapshot:
        with self._changed:
            running = self._sequences.values()
            # Claimed prompts are sure to come, or to be given up within seconds.
            claimed_tokens = sum(claim.prompt_tokens for claim in self._claims.values())
            return Snapshot(
                free_pages=self._arena.free_pages,
                largest_free_run_pages=self._arena.largest_free_run,
                claimed=len(self._claims),
                running=len(running),
                waiting_prompt_tokens=claimed_tokens
                + sum(one.waiting_prompt_tokens for one in running),
            )

    def running(self) -> list[Sequence]:
        """First come, first in the list."""
        with self._changed:
            return list(self._sequences.values())

    def end(self, sequence: Sequence) -> None:
        """Strike it off and free its pages. Raises `KeyError` if it was ended before."""
        with self._changed:
            if self._sequences.pop(sequence.id, None) is None:
                raise KeyError("the sequence was ended before")
            self._arena.release(sequence.id)

    def check(self) -> None:
        """Raises `AssertionError` unless each page is free or held by one claim or sequence."""
        with self._changed:
            self._arena.check()
            held = sum(len(claim.pages) for claim in self._claims.values())
            held += sum(len(sequence.pages) for sequence in self._sequences.values())
            if self._arena.free_pages + held != self._arena.total_pages:
                raise AssertionError(f"{held} pages are held, {self._arena.free_pages} are free")

    def _held(self, id: str) -> tuple[int, int] | None:
        """(prompt_tokens, max_tokens) of the claim or sequence of that id."""
        if id in self._sequences:
            return len(self._sequences[id].prompt), self._sequences[id].max_tokens
        if id in self._claims:
            return self._claims[id].prompt_tokens, self._claims[id].max_tokens
        return None

    def _why_never(self, prompt_tokens: int, max_tokens: int, pages: int) -> str | None:
        facts = self._facts
        if prompt_tokens < 1 or max_tokens < 1:
            return f"prompt_tokens = {prompt_tokens} and max_tokens = {max_tokens} must be over 0"
        if prompt_tokens + max_tokens > facts.context_tokens:
            return (
                f"{prompt_tokens} prompt + {max_tokens} new tokens are more than the context of "
                f"{facts.context_tokens}"
            )
        if pages > facts.total_pages:
            return f"{pages} pages are needed, the whole arena has {facts.total_pages}"
        return None


def _no_pages(needed: int, free: int) -> Refused:
    reason = f"{needed} pages are needed, {free} are free"
    return Refused(RefusalKind.NO_PAGES, reason, needed, free)
