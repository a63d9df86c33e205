"""The session refuses at its own edge what it can, before anything is asked of anybody."""

import asyncio
import socket

import pytest

from crowfly import AutoTuneSession, DeadlineExceeded, InvalidRequest, Unavailable
from crowfly.client.options import Deadline
from crowfly.client.requests import assign, choice, token_ids
from crowfly.v1 import dispatcher_pb2, worker_pb2


def test_a_session_refuses_an_address_or_a_profile_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="dispatcher: 'nowhere' is not host:port"):
        AutoTuneSession("nowhere")
    with pytest.raises(InvalidRequest, match="tuning_profile='fast' is none of latency_optimized"):
        AutoTuneSession(tuning_profile="fast")  # type: ignore[arg-type]


def test_a_dispatcher_that_is_not_there_is_unavailable_by_its_address() -> None:
    async def scenario() -> None:
        async with AutoTuneSession("127.0.0.1:1") as session:
            with pytest.raises(Unavailable, match=r"dispatcher 127\.0\.0\.1:1: "):
                await session.complete("hello")
            with pytest.raises(Unavailable, match=r"no model served by 1 workers within 0\.1 s"):
                await session.wait_until_served(0.1)

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [-1, 260, 2**70, 1.5, True, None, "1"])
def test_the_first_wrong_token_is_named_with_its_place_and_the_bound(wrong: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        token_ids([0, 259, wrong, -5], 260)  # type: ignore[list-item]
    assert str(refused.value) == f"prompt[2]={wrong!r} is not a token id of 0..259"


def test_right_tokens_pass_as_they_are() -> None:
    assert token_ids((0, 259), 260) == [0, 259]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_tokens", -3, "max_tokens=-3 is not an integer of 0..4294967295"),
        ("max_tokens", 2**32, "max_tokens=4294967296 is not an integer of 0..4294967295"),
        ("request_id", 7, "request_id=7 is not a text"),
    ],
)
def test_a_field_out_of_its_range_is_named_with_the_range(
    field: str, value: object, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        assign(dispatcher_pb2.PlaceRequest(), **{field: value})
    assert str(refused.value) == said


def test_what_is_none_stays_unset() -> None:
    sampling = worker_pb2.Sampling()
    assign(sampling, temperature=0.5, seed=None)
    assert sampling == worker_pb2.Sampling(temperature=0.5)
    assert choice("precision", None, {"fp32": 1}) is None


def test_an_option_that_does_not_exist_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with AutoTuneSession() as session:
            with pytest.raises(InvalidRequest, match="no such option: max_token, stop "):
                await session.complete("hello", max_token=3, stop="x")  # type: ignore[call-arg]
            with pytest.raises(InvalidRequest, match="no such option: n "):
                await session.chat([], n=2)  # type: ignore[call-arg]

    asyncio.run(scenario())


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", [1]])
def test_a_timeout_that_is_none_is_refused(timeout: object) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest, match=r"timeout=.* is not a number of seconds over 0"):
            Deadline(timeout)

    asyncio.run(scenario())


def test_a_timeout_covers_everything_from_the_first_question_on() -> None:
    """A listener that never answers: only the timeout ends the wait."""

    async def scenario(port: int) -> None:
        async with AutoTuneSession(f"127.0.0.1:{port}") as session:
            with pytest.raises(DeadlineExceeded, match=r"within timeout=0\.2 s"):
                await session.complete("hello", timeout=0.2)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(scenario(silent.getsockname()[1]))
