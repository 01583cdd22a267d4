"""One small file per kind of fault: a module of this package is a kind, and its name is the kind's.

Nothing is listed anywhere: a new kind is a new file with what `Kind` asks for.
"""

import pkgutil
from importlib import import_module
from typing import Protocol, cast

from faultinject.targets import Victim


class Kind(Protocol):
    """What a kind's module holds. The injector has logged the fault before it calls `act`."""

    ends_attempt: bool
    """No rank of the attempt can go on after it, so the next fault waits for another attempt."""

    def act(self, victim: Victim, /) -> None:
        """Strike, and return at once. Called again on the same victim if the injector died meanwhile."""

    def confirm(self, victim: Victim, /) -> str | None:
        """What shows that the fault took effect; None as long as nothing does."""


def names() -> tuple[str, ...]:
    """Every kind there is, in alphabetical order; none is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def kind(name: str) -> Kind:
    """The kind called `name`. Raises `ValueError` where there is none."""
    if name not in names():
        raise ValueError(f"unknown fault kind {name[:40]!r}; known: {', '.join(names())}")
    return cast(Kind, import_module(f"{__name__}.{name}"))
