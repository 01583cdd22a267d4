"""Records of lineage that are lost: the run goes on from the newest state all the same, or says why not."""

import json

import pytest
import xxhash

from harness.checkpoint.lineage import Departure
from harness.checkpoint.manifest import COMMIT, decode_commit, encode_commit
from harness.checkpoint.refusals import RestoreError
from harness.checkpoint.store import record_of
from tests.harness.checkpoint.world import Run


@pytest.fixture(params=["file", "s3"])
def run(request, tmp_path):
    """Attempt 1 committed steps 10 and 20; attempt 2 went on from 20 and committed 30."""
    url = request.getfixturevalue("s3_url") if request.param == "s3" else ""
    run = Run(tmp_path / "checkpoints", url=url)
    run.commit(10, 20)
    run.commit(30)
    return run


def forget_departures(run: Run, attempt: int) -> None:
    """Make the commits of an attempt as an older version wrote them."""
    store = run.store()
    for place in store.committed():
        if place.attempt == attempt:
            name = f"{place.name}/{COMMIT}"
            fields = json.loads(encode_commit(decode_commit(store.read(name))))
            del fields["departure"], fields["checksum"]
            raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
            fields["checksum"] = xxhash.xxh3_128_hexdigest(raw)
            store.write(name, [json.dumps(fields).encode()])


@pytest.mark.parametrize("lost", [[2], [1], [1, 2]])
def test_a_lost_record_is_written_again_and_the_newest_state_is_taken(run, lost, capfd):
    before = run.store().departures()
    for attempt in lost:
        run.store().delete(record_of(attempt))

    assert [found.step for found in run.choose()] == [30, 30]

    assert run.store().departures() == {**before, 3: Departure(2, 30)}
    assert capfd.readouterr().err.splitlines() == [
        f"harness: the record of attempt {attempt} was lost; it was written again from its commits"
        for attempt in lost
    ]


def test_a_record_that_no_commit_can_replace_is_named_and_nothing_older_is_taken(run):
    forget_departures(run, 2)
    run.store().delete(record_of(2))

    lost = r"attempts/00002\.json is missing, .* attempt 2 resumed from.*put the record back.*--resume STEP"
    with pytest.raises(RestoreError, match=lost):
        run.choose()
    assert [found.step for found in run.choose(resume="20")] == [20, 20]
    assert [found.step for found in run.choose()] == [20, 20]  # that was asked for


def test_a_damaged_record_is_refused_and_made_anew_once_it_is_moved_away(run):
    store = run.store()
    store.write(record_of(2), [b"{"])
    with pytest.raises(ValueError, match=r"attempts/00002.json is damaged .*move it away"):
        run.choose()

    store.delete(record_of(2))
    assert [found.step for found in run.choose()] == [30, 30]


def test_a_lost_record_of_an_attempt_that_was_left_stays_lost(run):
    run.choose(resume="10")  # attempt 3
    forget_departures(run, 2)
    run.store().delete(record_of(2))

    assert [found.step for found in run.choose()] == [10, 10]


def test_a_commit_that_is_damaged_tells_nothing_and_another_of_the_attempt_does(tmp_path):
    run = Run(tmp_path / "checkpoints")
    run.commit(10, 20, 30)
    run.store().delete(record_of(1))
    (run.directory(30) / COMMIT).write_text("{")

    assert [found.step for found in run.choose()] == [20, 20]
