"""Settings come from the environment or not at all, and a bad one is named."""

from dataclasses import dataclass

import pytest

from crowfly.settings import SettingsError, read, read_or_exit


@dataclass(frozen=True)
class Example:
    listen: str = "127.0.0.1:0"
    threads: int | None = None
    drain_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.drain_seconds < 0:
            raise SettingsError(f"CROWFLY_DRAIN_SECONDS={self.drain_seconds:g} is below 0")


def test_nothing_set_means_the_defaults() -> None:
    assert read(Example, {}) == Example()


def test_each_field_has_one_variable_of_its_own_type() -> None:
    environ = {"CROWFLY_THREADS": "3", "CROWFLY_DRAIN_SECONDS": "1.5", "CROWFLY_LISTEN": "[::1]:1"}
    assert read(Example, environ) == Example("[::1]:1", 3, 1.5)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CROWFLY_THREADS", "two", "CROWFLY_THREADS='two' is not an integer"),
        ("CROWFLY_DRAIN_SECONDS", "soon", "CROWFLY_DRAIN_SECONDS='soon' is not a number"),
        ("CROWFLY_DRAIN_SECONDS", "-1", "CROWFLY_DRAIN_SECONDS=-1 is below 0"),
    ],
)
def test_a_bad_value_is_named(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(Example, {variable: value})
    assert str(refused.value) == said


def test_a_service_with_a_bad_value_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CROWFLY_THREADS", "two")
    with pytest.raises(SystemExit) as ended:
        read_or_exit(Example, [])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "CROWFLY_THREADS='two' is not an integer\n"


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("-h", 0), ("--listen=x", 2)])
def test_a_service_has_no_arguments_and_says_what_can_be_set(
    argument: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_or_exit(Example, [argument])
    assert ended.value.code == code
    said = capsys.readouterr()
    shown = said.out if code == 0 else said.err
    assert "  CROWFLY_LISTEN           default: 127.0.0.1:0\n" in shown
    assert "  CROWFLY_THREADS          default: by the machine\n" in shown
