import socket
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from launch.doctor import disk, look, machine
from launch.doctor.facts import Disk, Gpu, Memory, Ports, Trial
from launch.doctor.tried import heard

GB = 10**9


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in (
        {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  62500000 kB\n"} | files
    ).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_a_container_all_memory_is_there(tmp_path):
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n"})
    assert machine.memory(root) == Memory(64 * GB, None, None)


def test_the_limit_of_a_container_of_today(tmp_path):
    own = "sys/fs/cgroup/pod/box"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            f"{own}/memory.max": "max\n",
            f"{own}/memory.current": f"{2 * GB}\n",
            "sys/fs/cgroup/pod/memory.max": f"{8 * GB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{3 * GB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GB}\n",
        },
    )
    assert machine.memory(root) == Memory(6 * GB, 8 * GB, None)


def test_the_limit_of_a_container_of_yesterday(tmp_path):
    top = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "7:cpu:/box\n5:memory:/box\n0::/\n",
            f"{top}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{top}/box/memory.limit_in_bytes": f"{4 * GB}\n",
            f"{top}/box/memory.usage_in_bytes": f"{GB}\n",
        },
    )
    assert machine.memory(root) == Memory(3 * GB, 4 * GB, None)


def test_this_machine_can_do_what_a_launcher_does():
    assert machine.kernel().missing == ()
    assert machine.clock().has_boot_id
    assert machine.memory().available_bytes > 0


def test_a_port_that_is_taken():
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert machine.ports(taken) == Ports(True)
    assert machine.ports(taken) == Ports(False)


def test_a_disk_is_tried_and_left_as_it_was(tmp_path):
    found = disk.tried(tmp_path / "runs" / "new")
    assert (found.path, found.error) == (tmp_path, "")
    assert found.free_bytes > 0
    assert found.sync_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_judged_by_the_disk_that_it_leads_to(tmp_path):
    link = tmp_path / "runs"
    with TemporaryDirectory(dir="/dev/shm") as folder:
        link.symlink_to(folder)
        found = [disk.tried(path) for path in (Path(folder), link, link / "new")]
    assert [(it.path, it.kind, it.error) for it in found] == [
        (Path(folder), "tmpfs", ""),
        (link, "tmpfs", ""),
        (link, "tmpfs", ""),
    ]


def test_a_place_where_nothing_can_be_written():
    assert disk.tried(Path("/proc/1/runs")).error


def test_a_place_behind_a_file_is_none(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "runs" / "one"):
        assert disk.tried(path) == Disk(tmp_path / "file", error="it is no folder")


def test_a_storage_is_tried_and_left_as_it_was(tmp_path):
    (tmp_path / "kept").mkdir()
    for url in ("new/deep/er", "kept/new", "kept"):
        found = look.storage_at(tmp_path / "runs", str(tmp_path / url))
        assert (found.error, found.warnings) == ("", ())
        assert list(tmp_path.rglob("*")) == [tmp_path / "kept"]


@pytest.mark.parametrize(
    ("path", "kind"), [("/data/runs", "xfs"), ("/data", "xfs"), ("/datas", "ext4"), ("/a b", "nfs")]
)
def test_which_file_system_a_path_is_on(path, kind):
    mounts = "rootfs / ext4 rw 0 0\n/dev/sdb /data xfs rw 0 0\nhost:/x /a\\040b nfs rw 0 0\n"
    assert disk.kind_of(Path(path), mounts) == kind


def test_what_a_trial_said_and_how_it_ended_instead():
    said = 'a warning\n{"torch": "2.13.0", "gpus": [{"name": "NVIDIA H200", "memory_bytes": 8}], "store_s": 0.5}\n'
    assert heard(said, "", 0) == Trial(
        torch="2.13.0", gpus=(Gpu("NVIDIA H200", 8, 989.5e12),), store_s=0.5
    )
    assert heard("", "x\nSegmentation fault\n", -11).error == (
        "the trial ended with -11: Segmentation fault"
    )
    assert heard("", "", -9).error == "the trial ended with -9: and said nothing"
