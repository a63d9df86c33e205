"""The `crowfly` command. Each subcommand is a file of its own, loaded when it is used."""

import argparse
import os
import sys

from crowfly import address, wire


def main() -> None:
    """Parse, run, exit: 0 done, 1 failed (one line on stderr says why), 2 wrong usage."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.command == "up" and arguments.ask is None and (arguments.raw or arguments.once):
        parser.error("up: --raw and --once need --ask")
    sys.exit(_run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "up":
            from crowfly.cli.up import run
        case "ask":
            from crowfly.cli.ask import run
        case "model":
            from crowfly.cli.model import run
        case _:
            from crowfly.cli.doctor import run
    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crowfly", description="LLM inference on GPU clusters, as the crow flies."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="run a whole cluster on this machine")
    up.add_argument("--workers", type=_positive, default=2, help="default: 2")
    model = os.environ.get("CROWFLY_MODEL", "smollm2")
    up.add_argument("--model", default=model, help=f"a name or a folder; default: {model}")
    up.add_argument("--precision", choices=sorted(wire.PRECISIONS), help="default: by the device")
    up.add_argument("--ask", metavar="PROMPT", help="stream an answer to this once it serves")
    up.add_argument("--raw", action="store_true", help="PROMPT is a text to continue, not a chat")
    up.add_argument("--once", action="store_true", help="stop after the answer")

    ask = commands.add_parser("ask", help="stream one answer")
    ask.add_argument("prompt")
    ask.add_argument("--raw", action="store_true", help="continue the text instead of a chat turn")
    ask.add_argument(
        "--dispatcher", type=_address, default=wire.DISPATCHER, help=f"default: {wire.DISPATCHER}"
    )
    ask.add_argument("--model", help="default: the only one that is served")
    ask.add_argument("--max-tokens", type=_positive, default=128, help="default: 128")
    ask.add_argument("--profile", choices=sorted(wire.PROFILES), default="latency_optimized")
    ask.add_argument("--wait", type=_positive, default=0, help="seconds until a model is served")

    models = commands.add_parser("model", help="models on this machine")
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    pull = actions.add_parser("pull", help="fetch a model into the cache")
    pull.add_argument("name", help="smollm2")

    doctor = commands.add_parser("doctor", help="what this machine has, and what is missing")
    doctor.add_argument(
        "--dispatcher", type=_address, default=wire.DISPATCHER, help=f"default: {wire.DISPATCHER}"
    )
    return parser


def _address(text: str) -> str:
    try:
        return str(address.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
