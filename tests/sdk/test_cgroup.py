from pathlib import Path

import pytest

from crowfly.cgroup import limiting_groups

GIB = 1 << 30
MACHINE = 64 * GIB


def a_group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def v2(limit: object) -> dict[str, object]:
    return {
        "memory.max": limit,
        "memory.current": 3 * GIB,
        "memory.stat": f"anon {2 * GIB}\ninactive_file {GIB}",
    }


def v1(limit: object) -> dict[str, object]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": 3 * GIB,
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
    }


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "membership"


def test_a_version_2_limit_counts_without_the_file_cache(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/pod/container\n")
    a_group(tmp_path / "pod", v2("max"))
    a_group(tmp_path / "pod" / "container", v2(8 * GIB))
    (group,) = limiting_groups(MACHINE, tmp_path, membership)
    assert (group.limit_bytes(), group.used_bytes()) == (8 * GIB, 2 * GIB)


def test_a_limit_on_the_group_above_counts(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/pod/container\n")
    a_group(tmp_path / "pod", v2(8 * GIB))
    a_group(tmp_path / "pod" / "container", v2("max"))
    assert [group.limit_bytes() for group in limiting_groups(MACHINE, tmp_path, membership)] == [
        8 * GIB
    ]


def test_a_version_1_limit_is_found_in_the_memory_controller(
    tmp_path: Path, membership: Path
) -> None:
    membership.write_text("7:cpu:/c\n4:memory:/path/on/the/host\n0::/\n")
    a_group(tmp_path / "memory", v1(8 * GIB))
    (group,) = limiting_groups(MACHINE, tmp_path, membership)
    assert (group.limit_bytes(), group.used_bytes()) == (8 * GIB, 2 * GIB)


@pytest.mark.parametrize("limit", [0x7FFF_FFFF_FFFF_F000, MACHINE])
def test_a_limit_over_the_machine_is_none(tmp_path: Path, membership: Path, limit: int) -> None:
    membership.write_text("4:memory:/\n")
    a_group(tmp_path / "memory", v1(limit))
    assert limiting_groups(MACHINE, tmp_path, membership) == ()


def test_a_kernel_without_control_groups_has_no_limit(tmp_path: Path, membership: Path) -> None:
    assert limiting_groups(MACHINE, tmp_path, membership) == ()
