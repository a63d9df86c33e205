"""One frozen dataclass per process, read once from the environment.

A field `drain_seconds` is set by `CROWFLY_DRAIN_SECONDS`. Fields are `str`, `int` or `float` (or
one of these with `| None`); bounds are checked by the class's own `__post_init__`, which raises
`SettingsError`.
"""

import dataclasses
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PREFIX = "CROWFLY_"


class SettingsError(ValueError):
    """A setting has a value that cannot be used; the message names it."""


def read(kind: type[T], environ: Mapping[str, str] = os.environ) -> T:
    """An instance of the dataclass `kind`, with every `CROWFLY_<FIELD>` of `environ` applied.

    Raises `SettingsError`.
    """
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        variable = PREFIX + field.name.upper()
        if variable in environ:
            values[field.name] = _parse(variable, environ[variable], hints[field.name])
    return kind(**values)


def read_or_exit(kind: type[T], arguments: Sequence[str] | None = None) -> T:
    """`read`, for `__main__`: a bad value is one line on stderr and exit code 2, and so is an
    argument, since there are none; `--help` lists the settings instead."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        asked = arguments[0] in ("-h", "--help")
        (sys.stdout if asked else sys.stderr).write(usage(kind))
        sys.exit(0 if asked else 2)
    try:
        return read(kind)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


def usage(kind: type[T]) -> str:
    """One line per setting, with its default."""
    default, lines = kind(), []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        value = getattr(default, field.name)
        shown = "by the machine" if value is None else value
        lines.append(f"  {PREFIX}{field.name.upper():<16} default: {shown}\n")
    return "There are no arguments. Environment variables:\n" + "".join(lines)


@contextmanager
def naming(*fields: str) -> Iterator[None]:
    """A `ValueError` inside becomes a `SettingsError` that names the variables of `fields`."""
    try:
        yield
    except ValueError as error:
        variables = " or ".join(PREFIX + field.upper() for field in fields)
        raise SettingsError(f"{variables}: {error}") from None


def check_node(node: str) -> None:
    """A node's name is a part of keys in the store. Raises `SettingsError`."""
    if not (node.isascii() and node.isprintable()) or not node or "/" in node or " " in node:
        raise SettingsError(
            f"{PREFIX}NODE={node!r} is not a name of printable ASCII without slashes or blanks"
        )


def _parse(variable: str, text: str, hint: object) -> object:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    try:
        return {str: str, int: int, float: float}[hint](text)  # type: ignore[index]
    except ValueError:
        raise SettingsError(
            f"{variable}={text!r} is not {'an integer' if hint is int else 'a number'}"
        ) from None
