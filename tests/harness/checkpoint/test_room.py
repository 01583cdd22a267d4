from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.room import Room, decide, left_bytes

GB = 10**9


def test_two_slots_where_four_fifths_of_what_is_left_hold_them():
    assert decide(4 * GB, 10 * GB) == Room(2)


@pytest.mark.parametrize(
    ("state_bytes", "slots", "line"),
    [
        (
            4 * GB + 1,
            1,
            (
                "copies in memory have one slot instead of two, for the state takes 4 GB and 10 GB of"
                " memory are left: a rank that dies in the middle of a copy costs the work since the last"
                " save to storage"
            ),
        ),
        (
            9 * GB,
            0,
            (
                "no copies are kept in memory, for the state takes 9 GB and 10 GB of memory are left:"
                " failures cost more work"
            ),
        ),
    ],
)
def test_too_little_memory_is_said_in_one_line(state_bytes, slots, line):
    assert decide(state_bytes, 10 * GB) == Room(slots, line)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_fifth_is_always_left_and_less_than_two_slots_are_always_explained(state_bytes, left):
    found = decide(state_bytes, left)
    assert found.slots * state_bytes <= 0.8 * left
    assert (found.slots < 2) == bool(found.line)


def reading(files: dict[str, str]) -> Callable[[str], str]:
    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return read


MACHINE = {"/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"}


def test_the_tightest_of_machine_and_groups_counts_and_unused_file_pages_are_free():
    nested = {
        "/proc/self/cgroup": "0::/pod/job\n",
        "/sys/fs/cgroup/pod/memory.max": "5000000\n",
        "/sys/fs/cgroup/pod/memory.current": "4000000\n",
        "/sys/fs/cgroup/pod/memory.stat": "anon 3\ninactive_file 500000\n",
        "/sys/fs/cgroup/pod/job/memory.max": "max\n",
        "/sys/fs/cgroup/pod/job/memory.current": "4000000\n",
    }
    assert left_bytes(reading(MACHINE)) == 8_192_000
    assert left_bytes(reading({**MACHINE, **nested})) == 1_500_000


def test_a_container_of_the_older_kind_counts_too():
    older = {
        "/proc/self/cgroup": "9:cpu,memory:/docker/1\n8:pids:/docker/1\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000",
        "/sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 7\n",
    }
    assert left_bytes(reading({**MACHINE, **older})) == 2_000_007


def test_this_machine_has_some_memory_left():
    assert 0 < left_bytes() < 1 << 60
