import re

from harness.page import serving


def test_the_page_asks_nobody_but_its_own_server():
    page = serving.page().decode()
    assert re.findall(r"https?://[^\s'\"]+", page.replace("http://www.w3.org/", "")) == []
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:)", page)


def test_nothing_is_ever_written_into_the_page_as_html():
    script = serving.page().decode().partition("<script>")[2]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script


def test_the_policy_names_what_the_page_holds_and_nothing_else():
    page, policy = serving.page().decode(), serving.policy()
    assert len(re.findall("'sha256-[^']+'", policy)) == page.count("<script>") + page.count(
        "<style>"
    )
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")
    assert " style=" not in page
    assert not re.search(r" on\w+=", page)


def test_the_style_and_the_script_are_in_the_page():
    page = serving.page().decode()
    assert "/* page." not in page
    assert "prefers-color-scheme: dark" in page
    assert '"use strict"' in page


def test_a_window_that_is_none_of_ours_is_the_usual_one():
    asked = ("window_s=900", "window_s=60&x=1", "", "window_s=1e9", "window_s=-1", "window_s=%00")
    assert [serving.window_of(query) for query in asked] == [900, 60, 300, 300, 300, 300]
