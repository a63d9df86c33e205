"""The claims that are held for callers who have not come yet."""

import asyncio
from collections.abc import Container
from dataclasses import dataclass

from crowfly import wire
from crowfly.errors import InvalidTicket
from crowfly.v1 import worker_pb2
from crowfly_worker.bounds import Order
from crowfly_worker.changes import Changes
from crowfly_worker.engine.port import Engine, Refused


@dataclass(frozen=True, slots=True)
class Held:
    """A claim, until its caller comes or `expiry` strikes."""

    order: Order
    expiry: asyncio.TimerHandle

    def expires_in_ms(self, now: float) -> int:
        """`now` on the loop's clock."""
        return max(0, round((self.expiry.when() - now) * 1000))


@dataclass(frozen=True, slots=True)
class Declined:
    """Not even asked of the engine."""

    reason: worker_pb2.RefusalReason.ValueType
    message: str


class Reservations:
    """Belongs to the loop. A reservation id is the ticket: whoever takes it owns the claim and
    must submit or release it.

    `running` holds the ids whose caller has come, so that these are not claimed a second time.
    """

    def __init__(self, engine: Engine, changes: Changes, running: Container[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._changes = changes
        self._running = running
        self._held: dict[str, Held] = {}
        self.draining = False

    def __len__(self) -> int:
        return len(self._held)

    def drain(self) -> None:
        """Take nothing new from now on; what is held stays held."""
        self.draining = True
        self._changes.notify()

    def open(self, order: Order) -> Held | Refused | Declined:
        """Claim the pages for `order`; the same order again gives the same claim."""
        held = self._held.get(order.reservation_id)
        if held is not None and held.order == order:
            return held
        if declined := self._declined(order):
            return declined
        outcome = self._engine.claim(order.reservation_id, order.prompt_tokens, order.max_tokens)
        if isinstance(outcome, Refused):
            return outcome
        return self._hold(order)

    def take(self, ticket: str) -> Order:
        """The claim is the caller's now. Raises `InvalidTicket`."""
        held = self._held.pop(ticket, None)
        if held is None:
            raise InvalidTicket(
                "the ticket is unknown, was used, or has expired: ask a dispatcher for a new place"
            )
        held.expiry.cancel()
        return held.order

    def close(self, reservation_id: str) -> None:
        """Give the claim back. One that is not held (any more) is no error."""
        held = self._held.pop(reservation_id, None)
        if held is not None:
            held.expiry.cancel()
            self._engine.release(reservation_id)
            self._changes.notify()

    def close_all(self) -> None:
        for reservation_id in list(self._held):
            self.close(reservation_id)

    def check(self) -> None:
        """Raises `AssertionError` unless the engine holds exactly these claims and each will
        expire. True between any two callbacks of the loop."""
        assert self._engine.load().claimed == len(self._held)
        for reservation_id, held in self._held.items():
            assert held.order.reservation_id == reservation_id
            assert not held.expiry.cancelled()
            assert reservation_id not in self._running

    def _declined(self, order: Order) -> Declined | None:
        if order.reservation_id in self._held or order.reservation_id in self._running:
            return Declined(worker_pb2.REFUSAL_REASON_INVALID, "reservation_id is already in use")
        if self.draining:
            return Declined(worker_pb2.REFUSAL_REASON_DRAINING, "this worker takes nothing new")
        return None

    def _hold(self, order: Order) -> Held:
        expiry = self._loop.call_later(wire.CLAIM_SECONDS, self.close, order.reservation_id)
        held = self._held[order.reservation_id] = Held(order, expiry)
        self._changes.notify()
        return held
