"""What every kind of fault has to keep; a new kind is tested here without another line."""

import pytest

from faultinject import kinds, targets
from faultinject.targets import Victim
from harness.recorder import boot_id
from harness.rundir import RunDir
from tests.faultinject.conftest import Ranks
from tests.waiting import until


def test_the_kinds_are_the_files_of_their_folder():
    assert kinds.names() == ("kill",)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown fault kind 'kil'; known: kill"):
        kinds.kind("kil")


@pytest.mark.parametrize("name", kinds.names())
def test_a_kind_takes_effect_and_can_be_repeated_on_the_same_victim(
    name: str, run_dir: RunDir, start_rank: Ranks
):
    kind = kinds.kind(name)
    start_rank(0, 1).ready()
    victim = targets.find(run_dir, 0, 1, boot_id())
    assert isinstance(victim, Victim)

    with victim:
        assert kind.confirm(victim) is None
        kind.act(victim)
        kind.act(victim)
        seen = until(lambda: kind.confirm(victim), f"{name} takes effect")

        assert seen.strip() == seen
        assert victim.is_dead() or not kind.ends_attempt
