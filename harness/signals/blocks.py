"""Which parameters are told of together, by their names: the block of a model that each belongs to."""

from collections.abc import Iterable, Mapping, Sequence

ALL = "all"
"""What every parameter belongs to."""


def block(name: str) -> str:
    """`model.blocks.3` for `model.blocks.3.attention.weight`, `model.head` for `model.head.bias`.

    That is the path down to the first number in it, or to the first module below the object that
    is protected; a parameter of that object itself is its own block.
    """
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), 1)
    return ".".join(parts[: max(2, number + 1)])


def grouped(names: Sequence[str], alone: Iterable[str] = ()) -> Mapping[str, Sequence[int]]:
    """Positions in `names` by group: all of them, each block, and each of `alone` by itself.

    Raises `ValueError` that lists what of `alone` is no parameter.
    """
    groups: dict[str, list[int]] = {ALL: list(range(len(names)))}
    for place, name in enumerate(names):
        groups.setdefault(block(name), []).append(place)
    wanted = set(alone)
    if unknown := sorted(wanted - set(names)):
        known = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise ValueError(
            f"watch_tensors: no parameter is called {', '.join(unknown)}; known: {known}"
        )
    return groups | {name: [place] for place, name in enumerate(names) if name in wanted}
