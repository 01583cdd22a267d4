import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.replace import replace_file
from tests.zygote import ROOT


def test_a_file_is_made_and_replaced_and_nothing_lies_beside_it(tmp_path):
    path = tmp_path / "a"
    for content in (b"old", b"", b"new"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, step, error):
    path = tmp_path / "a"
    replace_file(path, b"old")

    def fail(self, *arguments):
        self.touch()
        raise error

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(type(error)):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_or_a_full_disk_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", b"new")
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "nowhere" / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a device or a pipe is not replaced"):
        replace_file(pipe, b"new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


KILLED = """
import os, sys
from pathlib import Path
from harness.replace import replace_file

done = getattr(Path, sys.argv[1])

def kill(self, *arguments):
    done(self, *arguments)
    os.kill(os.getpid(), 9)

setattr(Path, sys.argv[1], kill)
replace_file(Path(sys.argv[2]), b"new")
"""


@pytest.mark.parametrize(("step", "left"), [("write_bytes", b"old"), ("replace", b"new")])
def test_a_kill_in_between_leaves_the_old_file_or_the_new_one(tmp_path, step, left):
    path = tmp_path / "a"
    replace_file(path, b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, step, path], check=False, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == left


def test_what_must_survive_a_power_cut_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    tmp_path, monkeypatch
):
    path, seen = tmp_path / "a", []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        synced = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((synced == tmp_path, synced.name.startswith(".a."), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    replace_file(path, b"not so important")
    path.unlink()
    replace_file(path, b"new", durable=True)

    assert seen == [(False, True, False), (True, False, True)]
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
