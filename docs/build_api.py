"""Writes `docs/api.md` from the code: `python docs/build_api.py`. A test holds the page against it."""

import ast
import inspect
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import harness
from harness import events, settings
from harness.metrics import FAMILIES
from harness.simulation import flags
from launch.flags import make_parser

PAGE = Path(__file__).with_name("api.md")
EXIT_CODES = {
    **{code: f"the run {outcome}" for outcome, code in events.EXIT_CODES.items()},
    2: "the command was wrong; nothing was started",
}


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            "# What is public",
            "",
            "Written by `python docs/build_api.py`. What stands here changes only with a line in",
            "`CHANGELOG.md`: names to import, settings, events and their fields, metrics, exit codes.",
            "Everything else may change at any time. Every file carries the `schema` of its form;",
            "readers accept all older ones.",
            "",
            *_section("Names to import", ["name", "what it is"], _names()),
            *_section("Settings", ["setting", "default", "environment"], _settings()),
            "`harness run` takes torchrun's flags beside these.",
            "",
            *_section("Flags of `harness run`", ["flag", "meaning"], _flags()),
            *_section("Flags of `harness simulate`", ["flag", "default", "meaning"], _simulated()),
            *_section("Events", ["event", "fields"], _events()),
            *_section("Metrics", ["metric", "type", "labels", "meaning"], _metrics()),
            *_section("Exit codes", ["code", "meaning"], _exit_codes()),
        ]
    )


def _section(title: str, heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return [*lines, *(f"| {' | '.join(cell or '–' for cell in row)} |" for row in rows), ""]


def _names() -> Iterable[list[str]]:
    for name in sorted(harness.__all__):
        public = getattr(harness, name)
        if name != "Job":  # made by `join`
            yield [f"`{name}{_signature(public)}`", _first_sentence(public)]
        for method, value in vars(public).items() if inspect.isclass(public) else ():
            called = value.__func__ if isinstance(value, classmethod) else value
            if inspect.isfunction(called) and not method.startswith("_"):
                yield [f"`{name}.{method}{_signature(called)}`", _first_sentence(called)]


def _settings() -> Iterable[list[str]]:
    for key, default in settings.DEFAULTS.items():
        yield [f"`{key}`", f"`{default!r}`", f"`{settings.ENVIRONMENT_PREFIX}{key.upper()}`"]
    for alias, key in settings.ALIASES.items():
        name = f"`{settings.ENVIRONMENT_PREFIX}{alias.upper()}`"
        yield [f"`{alias}`", f"`{key}`, in steps", name]


def _flags() -> Iterable[list[str]]:
    ours = [
        group
        for group in make_parser()._action_groups
        if group.title in ("the run", "the launcher")
    ]
    for group in ours:
        for action in group._group_actions:
            names = ", ".join(f"`{name}`" for name in action.option_strings)
            yield [names, " ".join((action.help or "").split()) % {"default": action.default}]


def _simulated() -> Iterable[list[str]]:
    defaults = {field.name: field.default for field in fields(flags.Flags)}
    (described,) = ast.parse(inspect.getsource(flags.Flags)).body
    assert isinstance(described, ast.ClassDef)
    for field, text in zip(described.body[1::2], described.body[2::2], strict=True):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(field.target, ast.Name)
        assert isinstance(text, ast.Expr)
        assert isinstance(text.value, ast.Constant)
        default = defaults[field.target.id]
        shown = "" if default in ("", None, False) else f"`{default}`"
        yield [
            f"`--{field.target.id.replace('_', '-')}`",
            shown,
            " ".join(text.value.value.split()),
        ]


def _events() -> Iterable[list[str]]:
    for name, kind in sorted(events.event_types().items()):
        yield [f"`{name}`", ", ".join(f"`{field.name}`" for field in fields(kind))]


def _metrics() -> Iterable[list[str]]:
    for family in FAMILIES.values():
        yield [f"`{family.name}`", family.kind, ", ".join(family.labels), family.help]


def _exit_codes() -> Iterable[list[str]]:
    return ([f"`{code}`", meaning] for code, meaning in sorted(EXIT_CODES.items()))


def _signature(public: object) -> str:
    """Parameters alone: what they are is in the code's own types."""
    parameters = inspect.signature(public).parameters.values()  # type: ignore[arg-type]  # callables alone come here
    names = [
        f"{'**' if one.kind is one.VAR_KEYWORD else ''}{one.name}{'' if one.default is one.empty else '=…'}"
        for one in parameters
        if one.name != "self"
    ]
    return f"({', '.join(names)})"


def _first_sentence(public: object) -> str:
    return (inspect.getdoc(public) or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
