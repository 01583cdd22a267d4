import json

import pytest
import torch

from launch.doctor.command import doctor
from launch.doctor.tried import tried


@pytest.mark.processes
def test_this_machine_holds_a_run_but_not_in_memory_of_one_process(tmp_path, capsys):
    asked = ["--json", "--run", str(tmp_path / "runs"), "--state", "1MB", "--metrics-port", "0"]
    assert doctor([*asked, "--checkpoints", "memory://x"]) == 1
    told = json.loads(capsys.readouterr().out)
    levels = {one["check"]: one["level"] for one in told["findings"]}
    assert [levels.pop(name) for name in ("torch", "gpus", "start", "store", "backend")] == [
        "ok"
    ] * 5
    assert [check for check, level in levels.items() if level == "fail"] == ["storage"]
    ranks = torch.cuda.device_count() or 2
    assert (told["schema"], told["ranks"], told["level"]) == (1, ranks, "fail")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.processes
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_group_of_nccl_s_forms_on_the_gpus_that_are_there():
    trial = tried()
    assert (trial.error, trial.backend) == ("", "cuda:nccl,cpu:gloo")
    assert [gpu.name for gpu in trial.gpus] == [
        torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
    ]
    assert trial.group_s is not None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nproc-per-node", "0"], "'0' is no number from 1 to 4096"),
        (["--state", "4"], "'4' has no unit: write for example 4GB"),
        (["--state=-1GB"], "is no size above 0"),
        (["--state", "-3GB"], "'-3GB' is no size above 0"),
        (["--step", "-.5s"], "'-.5s' is no time above 0"),
        (["--memory-every", "-5min"], "'-5min'"),
        (["--memory-every", "0"], "'0' is no interval: write 'off' for none"),
        (["--memory-every", "often"], "'often' is not a duration"),
        (["--step", "3"], "'3' has no unit"),
        (["--metrics-port", "65536"], "is no TCP port"),
        (["--hang-after", "soon"], "invalid float value: 'soon'"),
        (["--hang-after", "-1"], "--hang-after -1 is not a time"),
        (["extra"], "unrecognized arguments: extra"),
        (["--run", "s3://bucket/run"], "harness doctor: --run: a run directory is a folder of"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(flags, words, capsys):
    assert doctor(flags) == 2
    assert words in capsys.readouterr().err


def test_help_says_what_the_exit_status_means(capsys):
    assert doctor(["--help"]) == 0
    assert "1 a check failed, 2 wrong usage" in capsys.readouterr().out
