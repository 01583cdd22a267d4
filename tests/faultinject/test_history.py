from faultinject.history import Change, History, as_of


def file(name: str, size: int = 1) -> dict[str, object]:
    return {"name": name, "size": size, "type": "file"}


def folder(name: str) -> dict[str, object]:
    return {"name": name, "size": 0, "type": "directory"}


CHANGES = [
    Change(10, "r/step-3/commit.json", 5),
    Change(20, "r/run.json", 7),
    Change(30, "r/step-6/commit.json", 6),
    Change(40, "r/step-3", None),
]
NOW = [file("r/run.json", 7), folder("r/step-6")]


def test_a_listing_of_long_ago_has_what_is_gone_and_not_what_is_new():
    assert as_of(CHANGES, 25, "r", NOW, deep=False) == [file("r/run.json", 7), folder("r/step-3")]
    assert as_of(CHANGES, 15, "r", NOW, deep=False) == [folder("r/step-3")]


def test_a_listing_of_now_is_true():
    assert as_of(CHANGES, 40, "r", NOW, deep=False) == NOW


def test_a_deep_listing_names_files():
    now = [file("r/run.json", 7), file("r/step-6/commit.json", 6)]
    assert as_of(CHANGES, 25, "r", now, deep=True) == [
        file("r/run.json", 7),
        file("r/step-3/commit.json", 5),
    ]


def test_what_was_there_before_the_history_is_always_shown():
    assert as_of(CHANGES, 0, "r", [folder("r/old"), *NOW], deep=False) == [folder("r/old")]


def test_a_folder_that_had_something_is_shown_though_more_came():
    changes = [Change(10, "r/a/one", 1), Change(30, "r/a/two", 1)]
    assert as_of(changes, 20, "r", [folder("r/a")], deep=False) == [folder("r/a")]
    files = [file("r/a/one"), file("r/a/two")]
    assert as_of(changes, 20, "r/a", files, deep=False) == [file("r/a/one")]


def test_changes_are_kept_in_a_file_for_all_processes(tmp_path):
    path = tmp_path / "history"
    History(path).created("r/a", 3)
    assert History(path).stale("r", [file("r/a", 3)], 3600.0, deep=False) == []
    assert History(path).stale("r", [file("r/a", 3)], 0.0, deep=False) == [file("r/a", 3)]
