"""A ticket becomes a token stream, once; a bad or broken one harms nobody else."""

import asyncio
import logging
import math
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly.tokenizer import Tokenizer
from crowfly.v1 import common_pb2, worker_pb2
from crowfly_worker.engine.port import SamplingParams

if TYPE_CHECKING:
    from tests.worker.wire.conftest import Served, ServeScripted

PROMPT = [7, 7, 7, 96]  # is answered by "abc..."
CUTS = 50
MOST_TOKENS_AFTER_A_CUT = 3
FOREVER = math.inf

Call = grpc.aio.UnaryStreamCall[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]


def generate(
    served: "Served",
    ticket: str,
    prompt: list[int] = PROMPT,
    sampling: worker_pb2.Sampling | None = None,
    seconds: float | None = None,
) -> Call:
    request = worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=prompt, sampling=sampling)
    return served.stub.Generate(request, timeout=seconds)


async def read(call: Call) -> list[worker_pb2.GenerateResponse]:
    return [response async for response in call]


async def failure(call: Call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read(call)
    return ended.value.code(), ended.value.details() or ""


def test_every_step_is_one_message_and_the_last_has_the_account(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            served.engine.scattered_pages = 5
            served.engine.allow(FOREVER)
            responses = await read(generate(served, await served.placed(4, max_tokens=3)))
            assert [list(response.token_ids) for response in responses] == [[97], [98], [99]]
            assert [response.text for response in responses] == ["a", "b", "c"]
            assert [response.HasField("finish") for response in responses] == [False, False, True]
            finish = responses[-1].finish
            assert finish.reason == worker_pb2.FINISH_REASON_LENGTH
            usage = finish.usage
            assert usage.request_id == "r"
            assert usage.worker_id == served.worker.registration.worker_id
            assert (usage.prompt_tokens, usage.completion_tokens) == (4, 3)
            assert 0 < usage.kernel_dispatch_time_ms <= usage.ttft_ms <= usage.total_ms
            assert usage.memory_fragmentation_score == 5 / 20
            assert usage.largest_free_bytes == 15 * 1000
            assert usage.total_free_bytes == 20 * 1000
            assert usage.kernel == common_pb2.KERNEL_RUNG_TORCH
            assert usage.precision == common_pb2.PRECISION_FP32
            await served.idle()

    asyncio.run(scenario())


def test_a_character_is_shown_when_it_is_whole(serve_scripted: "ServeScripted") -> None:
    """0xC2 0xC3 0xC4: two invalid starts and one that the end cuts off."""

    async def scenario() -> None:
        async with serve_scripted() as served:
            served.engine.allow(FOREVER)
            ticket = await served.placed(1, max_tokens=3)
            responses = await read(generate(served, ticket, [0xC1]))
            assert [response.text for response in responses] == ["", "\ufffd", "\ufffd\ufffd"]

    asyncio.run(scenario())


def test_streams_run_side_by_side_and_apart(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            tickets = [await served.placed(1, max_tokens=15) for _ in range(20)]
            calls = [
                asyncio.ensure_future(read(generate(served, ticket, [start])))
                for start, ticket in enumerate(tickets)
            ]
            await served.eventually(lambda: served.engine.load().running == 20)
            served.engine.allow(FOREVER)
            for start, responses in enumerate(await asyncio.gather(*calls)):
                tokens = [token for response in responses for token in response.token_ids]
                assert tokens == list(range(start + 1, start + 16))
            await served.idle()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (None, SamplingParams()),
        (worker_pb2.Sampling(seed=0), SamplingParams(seed=0)),
        (
            worker_pb2.Sampling(temperature=100, top_k=256, top_p=1, seed=2**64 - 1),
            SamplingParams(100.0, 256, 1.0, 2**64 - 1),
        ),
        (
            worker_pb2.Sampling(temperature=0.5, top_k=1, top_p=1e-9, seed=1),
            SamplingParams(0.5, 1, 1e-9, 1),
        ),
    ],
    ids=["absent", "defaults", "upper bounds", "lower bounds"],
)
def test_the_engine_samples_as_asked(
    serve_scripted: "ServeScripted",
    sampling: worker_pb2.Sampling | None,
    expected: SamplingParams,
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            served.engine.allow(FOREVER)
            ticket = await served.placed()
            await read(generate(served, ticket, sampling=sampling))
            got = served.engine.sampling[ticket]
            seed = expected.seed if sampling is not None else got.seed
            assert got == SamplingParams(expected.temperature, expected.top_k, expected.top_p, seed)

    asyncio.run(scenario())


def test_without_a_seed_every_stream_draws_its_own(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            served.engine.allow(FOREVER)
            for _ in range(8):
                await read(generate(served, await served.placed()))
            assert len({sampling.seed for sampling in served.engine.sampling.values()}) == 8

    asyncio.run(scenario())


@pytest.mark.parametrize("ticket", ["", "nonsense", "é", "0" * 32])
def test_an_unknown_ticket_is_refused(serve_scripted: "ServeScripted", ticket: str) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            status, details = await failure(generate(served, ticket))
            assert status is grpc.StatusCode.FAILED_PRECONDITION
            assert "ask a dispatcher for a new place" in details

    asyncio.run(scenario())


def test_a_ticket_works_once(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            ticket = await served.placed(4, max_tokens=2)
            first = asyncio.ensure_future(read(generate(served, ticket)))
            await served.eventually(lambda: served.engine.load().running == 1)
            while_running, _ = await failure(generate(served, ticket))
            served.engine.allow(FOREVER)
            assert len(await first) == 2
            afterwards, _ = await failure(generate(served, ticket))
            assert while_running is afterwards is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(scenario())


BAD = {
    "one id too few": (PROMPT[1:], {}, "prompt_token_ids has 3 ids, but 4 were placed"),
    "one id too many": ([*PROMPT, 1], {}, "prompt_token_ids has 5 ids, but 4 were placed"),
    "no ids": ([], {}, "prompt_token_ids has 0 ids"),
    "id over": ([1, 2, 256, 3], {}, "prompt_token_ids[2]=256 is not in 0..255"),
    "id far over": ([2**32 - 1, 0, 0, 0], {}, "prompt_token_ids[0]=4294967295 is not in 0..255"),
    "cold": (PROMPT, {"temperature": -0.1}, "sampling.temperature=-0.1 is not in 0..100"),
    "hot": (PROMPT, {"temperature": 100.5}, "sampling.temperature=100.5"),
    "nan": (PROMPT, {"temperature": math.nan}, "sampling.temperature=nan"),
    "inf": (PROMPT, {"temperature": math.inf}, "sampling.temperature=inf"),
    "top_k": (PROMPT, {"top_k": 257}, "sampling.top_k=257 is not in 0..256"),
    "top_p zero": (PROMPT, {"top_p": 0.0}, "sampling.top_p=0 is not over 0 and at most 1"),
    "top_p over": (PROMPT, {"top_p": 1.01}, "sampling.top_p=1.01"),
    "top_p nan": (PROMPT, {"top_p": math.nan}, "sampling.top_p=nan"),
}


@pytest.mark.parametrize(("prompt", "sampling", "said"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_gives_its_claim_back_and_harms_nobody(
    serve_scripted: "ServeScripted", prompt: list[int], sampling: dict[str, float], said: str
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            good = generate(served, await served.placed(4, max_tokens=20))
            served.engine.allow(1)
            first = await anext(aiter(good))
            before = served.engine.load()
            ticket = await served.placed()
            asked = worker_pb2.Sampling(**sampling)  # type: ignore[arg-type]
            status, details = await failure(generate(served, ticket, prompt, asked))
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert said in details
            assert served.engine.load() == before
            served.worker.reservations.check()
            assert (await failure(generate(served, ticket)))[0] is (
                grpc.StatusCode.FAILED_PRECONDITION
            )
            served.engine.allow(FOREVER)
            tokens = [token for response in await read(good) for token in response.token_ids]
            assert [*first.token_ids, *tokens] == list(range(97, 117))
            await served.idle()

    asyncio.run(scenario())


def test_a_failed_engine_is_an_internal_error_with_its_reason(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            call = asyncio.ensure_future(failure(generate(served, await served.placed())))
            await served.eventually(lambda: served.engine.load().running == 1)
            served.engine.fail("the logits are not finite")
            assert await call == (
                grpc.StatusCode.INTERNAL,
                "the engine failed: the logits are not finite",
            )
            await served.idle()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("seconds", "cause"), [(None, "the caller left"), (0.3, "its deadline passed")]
)
def test_a_cut_stops_the_engine_and_leaves_one_line(
    serve_scripted: "ServeScripted",
    caplog: pytest.LogCaptureFixture,
    seconds: float | None,
    cause: str,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serve_scripted() as served:
            served.engine.allow(5)
            ticket = await served.placed(4, max_tokens=100)
            call = generate(served, ticket, seconds=seconds)
            for _ in range(5):
                await anext(aiter(call))
            if seconds is None:
                call.cancel()
            await served.idle()  # though not one more step is allowed
            assert served.engine.load().generated_tokens_total == 5
            assert served.engine.load().cancelled_total == 1
            cuts = [line for line in caplog.messages if line.startswith("cut ")]
            assert cuts == [f"cut r after 5 tokens: {cause}"]
            assert ticket not in caplog.text
            assert "Traceback" not in caplog.text

    asyncio.run(scenario())


def test_fifty_cut_streams_leave_nothing_behind(
    serve_scripted: "ServeScripted", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serve_scripted() as served:
            for number in range(1, CUTS + 1):
                ticket = await served.placed(4, max_tokens=196)
                before = served.engine.load().generated_tokens_total
                async with grpc.aio.insecure_channel(served.worker.registration.address) as channel:
                    request = worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=PROMPT)
                    call = type(served.stub)(channel).Generate(request)
                    served.engine.allow(5)
                    for _ in range(5):
                        await anext(aiter(call))
                    if number % 2:
                        call.cancel()  # the others lose their whole connection
                await served.idle()
                load = served.engine.load()
                assert load.cancelled_total == number
                assert load.generated_tokens_total - before <= 5 + MOST_TOKENS_AFTER_A_CUT
            assert sum(line.startswith("cut ") for line in caplog.messages) == CUTS
            assert "Traceback" not in caplog.text

    asyncio.run(scenario())


def test_the_tokenizer_can_be_fetched(
    serve_scripted: "ServeScripted", byte_tokenizer: Tokenizer
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            files = await served.stub.GetTokenizer(worker_pb2.GetTokenizerRequest())
            fetched = Tokenizer(files.tokenizer_json, files.tokenizer_config_json)
            assert fetched.sha256 == byte_tokenizer.sha256
            assert served.worker.registration.model.tokenizer_sha256 == fetched.sha256

    asyncio.run(scenario())
