"""The values that decisions are made of. All frozen; times are seconds on one monotonic clock."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple


class Profile(Enum):
    """What the placement of a request minimises."""

    LATENCY_OPTIMIZED = "latency_optimized"  # time to first token
    THROUGHPUT_OPTIMIZED = "throughput_optimized"  # time until the answer is done
    MEMORY_EFFICIENT = "memory_efficient"  # the smallest contiguous hole that holds it


class Link(Enum):
    """The control stream to a worker."""

    CONNECTING = "connecting"  # registered, nothing heard yet
    CONNECTED = "connected"
    SUSPECT = "suspect"  # it ended and has not come back


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What never changes while a worker lives."""

    id: str
    epoch: str  # random, one per process start
    address: str
    model: str
    context_tokens: int  # prompt and answer together
    precision: str
    page_tokens: int  # positions in one KV page
    total_pages: int


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's report. Newer is the larger sequence of the same epoch.

    Rates are None until they were measured; a known prefill rate is over 0.
    """

    sequence: int
    at: float  # when it was true
    free_pages: int
    largest_free_run_pages: int
    running: int  # sequences
    waiting_prompt_tokens: int  # of held and submitted prompts, not prefilled yet
    held: int  # claims whose caller has not come yet
    draining: bool
    prefill_tokens_per_s: float | None = None
    step_base_ms: float | None = None  # a decode step takes base + sequences * per_sequence
    step_per_sequence_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """A claim that was sent to a worker and is not in its report yet."""

    reservation: str
    open_sequence: int  # counts up from 1 on one control stream
    pages: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as the book knows it at this moment."""

    facts: WorkerFacts
    link: Link
    load: WorkerLoad | None
    promised_pages: int
    promised_prompt_tokens: int
    promised_sequences: int

    @property
    def free_pages(self) -> int:
        """Free by the last report, less what was promised since."""
        return max(0, self.load.free_pages - self.promised_pages) if self.load else 0


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request before it is placed."""

    id: str
    model: str | None  # None: the only one that is served
    prompt_tokens: int
    max_tokens: int | None  # None: the rest of the context
    profile: Profile
    precision: str | None  # None: any
    tried: frozenset[str] = frozenset()  # ids of workers that refused it


class Candidate(NamedTuple):
    """A worker that could take the request, and the terms of its prediction in milliseconds.

    One is made per worker and request: a tuple takes half the time of a frozen dataclass.
    """

    facts: WorkerFacts
    max_tokens: int
    pages: int
    hole_pages: int | None  # the largest free run, if it holds all of them
    promised_sequences: int
    queue_ms: float  # prefill of the prompts before it
    prefill_ms: float
    decode_ms: float

    @property
    def ttft_ms(self) -> float:
        return self.queue_ms + self.prefill_ms

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.prefill_ms + self.decode_ms


class Reason(IntEnum):
    """Why a worker cannot take a request, in the order in which the filters ask.

    A rejected request carries the reason of the worker that came furthest.
    """

    NO_WORKER = 0
    MODEL_NOT_NAMED = 1  # several are served
    MODEL = 2
    PRECISION = 3
    CONTEXT = 4  # never: over the context
    ARENA = 5  # never: over all of its pages
    NOT_CONNECTED = 6
    DRAINING = 7
    SILENT = 8  # its last report is too old
    MEMORY = 9  # not now
    TRIED = 10  # it refused this request


@dataclass(frozen=True, slots=True)
class Shortage:
    """What the worker that came closest was short of."""

    needed: int
    available: int
    unit: str  # "tokens" or "pages of 16 tokens"


@dataclass(frozen=True, slots=True)
class Rejection:
    reason: Reason
    dropped: tuple[tuple[Reason, int], ...] = ()  # workers by the filter that dropped them
    shortage: Shortage | None = None  # with CONTEXT, ARENA and MEMORY
    served: tuple[str, ...] = ()  # models, or with PRECISION precisions, that would do
