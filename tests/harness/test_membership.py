from harness.membership import Membership


def test_a_lone_process_is_rank_0_of_1():
    assert Membership.read({}) == Membership(0, 1, 0, 1, 0, elastic=False)


def test_an_elastic_rank_is_what_its_agent_says():
    environ = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "none",
    }
    assert Membership.read(environ) == Membership(5, 8, 1, 4, 2, elastic=True)
