"""However slowly it is read, a mailbox leads its reader to the truth."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from crowfly.store import Change, Lost, Restored, Snapshot, WatchEvent
from crowfly.store.mailbox import Mailbox

KEYS = st.sampled_from("abc")
VALUES = st.none() | st.binary(max_size=1)
ACTIONS = st.lists(
    st.tuples(st.just("change"), KEYS, VALUES)
    | st.tuples(st.just("snapshot"), st.dictionaries(KEYS, st.binary(max_size=1)))
    | st.tuples(st.sampled_from(["lost", "restored", "read"])),
    max_size=40,
)


class Reader:
    """Believes what it is told, and checks that every event makes sense after those before."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.lost = False

    def hear(self, event: WatchEvent) -> None:
        match event:
            case Snapshot(items):
                self.items = dict(items)
                self.lost = False
            case Change(key, None):
                del self.items[key]  # nothing is taken back that was never told
            case Change(key, bytes(value)):
                assert not self.lost
                self.items[key] = value
            case Lost():
                assert not self.lost
                self.lost = True
            case Restored():
                assert self.lost
                self.lost = False


class Truth:
    """What a store would hold, and whether it answers."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.lost = False

    def act(self, mailbox: Mailbox, action: tuple[object, ...]) -> None:
        match action:
            case ("change", str(key), bytes(value)) if not self.lost:
                self.items[key] = value
                mailbox.change(key, value)
            case ("change", str(key), None) if not self.lost:
                self.items.pop(key, None)
                mailbox.change(key, None)
            case ("snapshot", dict(items)):
                self.items, self.lost = dict(items), False
                mailbox.snapshot(items)
            case ("lost",):
                self.lost = True
                mailbox.lost("gone")
            case ("restored",):
                self.lost = False
                mailbox.restored()


async def read_one(mailbox: Mailbox) -> WatchEvent | None:
    """None: there is nothing to read now."""
    reading = asyncio.create_task(mailbox.next())
    await asyncio.sleep(0)
    if reading.done():
        return reading.result()
    reading.cancel()
    return None


@given(ACTIONS)
def test_a_reader_of_any_speed_ends_with_the_truth(actions: list[tuple[object, ...]]) -> None:
    async def scenario() -> None:
        mailbox, truth, reader = Mailbox(), Truth(), Reader()
        for action in actions:
            truth.act(mailbox, action)
            if action == ("read",) and (event := await read_one(mailbox)):
                reader.hear(event)
        unread = 0
        while event := await read_one(mailbox):
            reader.hear(event)
            unread += 1
        assert (reader.items, reader.lost) == (truth.items, truth.lost)
        assert unread <= len("abc") + 2  # one change a key, or a snapshot; Restored, Lost

    asyncio.run(scenario())


def test_unread_changes_come_in_the_order_of_the_newest() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        for key, value in [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1")]:
            mailbox.change(key, value)
        told = [await mailbox.next() for _ in range(3)]
        assert told == [Change("b", b"1"), Change("a", b"2"), Change("c", b"1")]

    asyncio.run(scenario())


def test_a_key_that_came_and_went_unseen_is_not_mentioned() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        mailbox.change("a", b"1")
        mailbox.change("b", b"1")
        mailbox.change("a", None)
        mailbox.close()
        assert [await mailbox.next(), await mailbox.next()] == [Change("b", b"1"), None]

    asyncio.run(scenario())
