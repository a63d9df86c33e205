"""`crowfly ask`: the answer on stdout as it comes, how it came about on stderr."""

import argparse
import asyncio
import os
import sys

from crowfly import wire
from crowfly.client import AutoTuneSession, Stream
from crowfly.errors import CrowflyError, Unavailable


def run(arguments: argparse.Namespace) -> int:
    try:
        asyncio.run(_ask(arguments))
    except Unavailable as error:
        print(f"crowfly ask: {error}", file=sys.stderr)
        print("Is a cluster up? `crowfly up` starts one; `crowfly doctor` looks.", file=sys.stderr)
        return 1
    except CrowflyError as error:
        print(f"crowfly ask: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has what it wanted; nothing may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return 0


async def _ask(arguments: argparse.Namespace) -> None:
    async with AutoTuneSession(arguments.dispatcher, tuning_profile=arguments.profile) as session:
        if arguments.wait:
            await session.wait_until_served(arguments.wait)
        async with await _stream(session, arguments) as stream:
            async for delta in stream:
                print(delta.text, end="", flush=True)
        print(flush=True)
        print(_summary(stream), file=sys.stderr)


async def _stream(session: AutoTuneSession, arguments: argparse.Namespace) -> Stream:
    options = {"max_tokens": arguments.max_tokens}
    if arguments.model:
        options["model"] = arguments.model
    if arguments.raw:
        return await session.stream(arguments.prompt, **options)
    return await session.stream_chat([{"role": "user", "content": arguments.prompt}], **options)


def _summary(stream: Stream) -> str:
    usage, placement = stream.usage, stream.placement
    assert usage is not None
    decode_ms = usage.total_ms - usage.ttft_ms
    rate = f"{(usage.completion_tokens - 1) / decode_ms * 1e3:.0f} tokens/s, " if decode_ms else ""
    precision = wire.word(wire.PRECISIONS, usage.precision)
    kernel = wire.word(wire.KERNELS, usage.kernel)
    return (
        f"[{usage.prompt_tokens} + {usage.completion_tokens} tokens, {stream.finish_reason}; "
        f"{rate}first token {usage.ttft_ms:.0f} ms (predicted {placement.predicted_ttft_ms:.0f}), "
        f"all {usage.total_ms:.0f} ms (predicted {placement.predicted_total_ms:.0f}); "
        f"placed in {stream.placed_ms:.1f} ms on {usage.worker_id} at {placement.worker_address}, "
        f"{precision}, {kernel} kernels, fragmentation {usage.memory_fragmentation_score:.2f}]"
    )
