"""One request while it runs."""

from dataclasses import dataclass, field

from crowfly_worker.engine.port import SamplingParams


@dataclass(slots=True, eq=False)
class Sequence:
    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    pages: tuple[int, ...]
    sampling: SamplingParams
    generated: list[int] = field(default_factory=list)
    computed: int = 0  # positions whose keys and values are in the cache
    last_turn: int = 0  # when it was last in a step, on the engine's count of turns
    cancelled: bool = False

    @property
    def length(self) -> int:
        """Positions known so far; the next token gets this position."""
        return len(self.prompt) + len(self.generated)

    @property
    def pending(self) -> int:
        """Positions to compute before the next token: 1 in decode."""
        return self.length - self.computed

    @property
    def waiting_prompt_tokens(self) -> int:
        return max(0, len(self.prompt) - self.computed)

    def ids(self, start: int, count: int) -> list[int]:
        """`count` ids from position `start` on, which lie in the prompt or are the last token."""
        if start < len(self.prompt):
            return list(self.prompt[start : start + count])
        return self.generated[start - len(self.prompt) :][:count]
