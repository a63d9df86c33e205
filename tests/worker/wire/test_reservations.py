"""Whatever happens in whatever order, the engine holds exactly the claims that are held here."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from crowfly.errors import InvalidTicket
from crowfly_worker.bounds import Order
from crowfly_worker.changes import Changes
from crowfly_worker.engine.port import Refused, SamplingParams
from crowfly_worker.reservations import Declined, Held, Reservations

if TYPE_CHECKING:
    from tests.worker.wire.conftest import ScriptedEngine

TICKETS = st.sampled_from([f"{number:032x}" for number in range(5)])


def make_machine(engine_kind: "type[ScriptedEngine]") -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        """`held` and `running` are what the rules have been told."""

        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.new_event_loop()
            self.engine = engine_kind()
            self.held: dict[str, Order] = {}
            self.running: set[str] = set()
            self.reservations = self.loop.run_until_complete(self._make())

        async def _make(self) -> Reservations:
            return Reservations(self.engine, Changes(), self.running)

        @rule(ticket=TICKETS, prompt=st.integers(1, 120), answer=st.integers(1, 120))
        def open(self, ticket: str, prompt: int, answer: int) -> None:
            order = Order(ticket, "r", prompt, answer)
            outcome = self.reservations.open(order)
            if isinstance(outcome, Held):
                assert ticket not in self.running
                assert self.held.setdefault(ticket, order) == order
            elif isinstance(outcome, Declined):
                assert ticket in self.held or ticket in self.running or self.reservations.draining
            else:
                assert isinstance(outcome, Refused)
                assert prompt + answer > 200 or outcome.needed_pages > outcome.free_pages

        @rule(ticket=TICKETS)
        def open_again(self, ticket: str) -> None:
            if ticket in self.held:
                again = self.reservations.open(self.held[ticket])
                assert isinstance(again, Held)

        @rule(ticket=TICKETS)
        def come(self, ticket: str) -> None:
            if ticket in self.held:
                order = self.reservations.take(ticket)
                assert order == self.held.pop(ticket)
                self.engine.submit(ticket, [0] * order.prompt_tokens, SamplingParams())
                self.running.add(ticket)
            else:
                with pytest.raises(InvalidTicket):
                    self.reservations.take(ticket)

        @rule(ticket=TICKETS)
        def close(self, ticket: str) -> None:
            self.reservations.close(ticket)
            self.held.pop(ticket, None)

        @rule()
        def all_end(self) -> None:
            for ticket in self.running:
                self.engine.cancel(ticket)
            self.engine.step()
            self.running.clear()

        @rule()
        def drain(self) -> None:
            self.reservations.drain()

        @invariant()
        def the_books_agree(self) -> None:
            self.reservations.check()
            assert len(self.reservations) == len(self.held)
            assert self.engine.load().running == len(self.running)

        def teardown(self) -> None:
            self.reservations.close_all()
            assert not self.engine.load().claimed
            self.loop.close()

    return Machine


def test_the_books_agree_after_any_history(scripted_engine: "type[ScriptedEngine]") -> None:
    run_state_machine_as_test(make_machine(scripted_engine))
