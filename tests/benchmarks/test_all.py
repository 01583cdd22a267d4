"""`make bench` leaves no claim out, and no claim leaves out what a program looks for in it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIELDS = {"benchmark", "ours", "other", "unit", "ratio", "machine"}
CLAIMS = {
    path.stem: ast.parse(path.read_text())
    for path in (ROOT / "benchmarks").glob("*.py")
    if '"benchmark": "' in path.read_text()
}


def test_make_bench_runs_every_file_that_is_a_benchmark_and_says_how_long_each_takes():
    (listed,) = re.findall(r"^BENCHES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = {name for name, minutes in (one.split(":") for one in listed.split()) if int(minutes)}
    assert names == CLAIMS.keys()


def test_every_last_line_has_all_fields():
    lacking = {
        name: [FIELDS - entries.keys() for entries in dicts(file) if "benchmark" in entries]
        for name, file in CLAIMS.items()
    }
    assert lacking == {name: [set()] for name in CLAIMS}


def test_every_ratio_says_what_was_divided_by_what():
    for name, file in CLAIMS.items():
        names = [
            key
            for entries in dicts(file)
            if "ratio" in entries
            for value in (entries["ratio"], *values_of(entries["ratio"], file))
            for key in keys_in(value)
        ]
        assert names, name
        assert [key for key in names if " / " not in key] == [], name


def dicts(file: ast.AST) -> Iterator[dict[str, ast.expr]]:
    """Every dictionary that is written out, with those of its keys that are."""
    for node in ast.walk(file):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield {
                key.value: value
                for key, value in pairs
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }


def values_of(value: ast.expr, file: ast.AST) -> Iterator[ast.expr]:
    """What is given anywhere in the file to the names in `value`."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    for node in ast.walk(file):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            assert isinstance(node, ast.Assign | ast.AugAssign)
            yield node.value


def keys_in(value: ast.expr) -> Iterator[str]:
    """Keys of dictionaries in `value`, as they are written."""
    for node in ast.walk(value):
        if isinstance(node, ast.Dict):
            keys = [key for key in node.keys if key is not None]
        else:
            keys = [node.key] if isinstance(node, ast.DictComp) else []
        yield from (ast.unparse(key) for key in keys if not isinstance(key, ast.Name))
