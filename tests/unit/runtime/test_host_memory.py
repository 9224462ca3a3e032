"""What the host has left for a process: the least of its free memory and of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.act.guard.host.host_memory import Room, find_room

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A host with 64 GiB free, whose process is in no control group with a limit."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    meminfo = f"MemTotal: {128 << 20} kB\nMemFree: 1 kB\nMemAvailable: {64 << 20} kB\n"
    (tmp_path / "proc" / "meminfo").write_text(meminfo, encoding="ascii")
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def room_of(machine: Path, groups: str) -> Room:
    """The room of a process that is in these groups."""
    (machine / "proc" / "self" / "cgroup").write_text(groups, encoding="ascii")
    return find_room(machine / "proc", machine / "cgroup")


def write(machine: Path, folder: str, **files: object) -> None:
    """Writes files of a control group: memory_max= is memory.max."""
    group = machine / "cgroup" / folder
    group.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (group / name.replace("memory_", "memory.", 1)).write_text(f"{value}\n", encoding="ascii")


def test_without_a_limit_it_is_what_the_host_has(machine: Path) -> None:
    write(machine, "job", memory_max="max", memory_current=GIB)
    assert room_of(machine, "0::/job\n") == (64 * GIB, "the memory of the host")


def test_version_2_counts_each_group_around_and_gives_back_the_cache_of_files(
    machine: Path,
) -> None:
    write(machine, "pod", memory_max=16 * GIB, memory_current=14 * GIB, memory_stat="anon 1")
    write(
        machine, "pod/job", memory_max=8 * GIB, memory_current=5 * GIB,
        memory_stat=f"anon 1\ninactive_file {GIB}",
    )  # fmt: skip
    free, place = room_of(machine, "0::/pod/job\n")
    assert (free, place) == (2 * GIB, "the control group '/pod', whose limit is 16.0 GiB")
    write(machine, "pod", memory_max=64 * GIB)
    free, place = room_of(machine, "0::/pod/job\n")
    assert (free, place) == (4 * GIB, "the control group '/pod/job', whose limit is 8.0 GiB")


def test_version_1_has_other_names_and_a_number_for_no_limit(machine: Path) -> None:
    groups = "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n"
    write(
        machine, "memory/job", memory_limit_in_bytes=4 * GIB, memory_usage_in_bytes=3 * GIB,
        memory_stat="total_inactive_file 0",
    )  # fmt: skip
    write(
        machine, "memory", memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=9 * GIB
    )
    assert room_of(machine, groups).free_bytes == GIB
    write(machine, "memory/job", memory_limit_in_bytes=9223372036854771712)
    assert room_of(machine, groups) == (64 * GIB, "the memory of the host")


def test_in_a_container_the_groups_files_are_at_the_root(machine: Path) -> None:
    write(machine, ".", memory_max=2 * GIB, memory_current=3 * GIB)
    free, place = room_of(machine, "0::/docker/of-the-host\n")
    assert (free, place) == (0, "the control group '/', whose limit is 2.0 GiB")


def test_a_system_that_says_nothing_has_no_limit_that_is_known(tmp_path: Path) -> None:
    room = find_room(tmp_path, tmp_path)
    assert room.free_bytes >= 1 << 60
    assert room.place == "a system that does not say"


def test_this_machine_has_less_than_all_its_memory() -> None:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    room = find_room()
    assert 0 < room.free_bytes < total
    limits = [
        int(text)
        for path in ("memory.max", "memory/memory.limit_in_bytes")
        if (text := _read(Path("/sys/fs/cgroup") / path)).isdecimal()
    ]
    assert all(room.free_bytes <= limit for limit in limits)


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""
