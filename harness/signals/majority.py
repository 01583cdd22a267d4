"""Which rank holds what the others do not. Decides, from one number per rank and group."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison of all ranks came to."""

    groups: tuple[str, ...]
    """Those in which not all ranks are equal; none where all is well."""
    ranks: tuple[int, ...]
    """The odd ones; none where ranks differ and no majority says which is right."""

    @property
    def is_ambiguous(self) -> bool:
        """Ranks differ, and nobody can tell which."""
        return bool(self.groups) and not self.ranks

    @property
    def blocks(self) -> str:
        """The groups, for people: as many as fit a line."""
        return ", ".join(self.groups[:4]) + (", …" if len(self.groups) > 4 else "")

    @property
    def odd(self) -> str:
        """The ranks, for people."""
        return ", ".join(map(str, self.ranks))


def judge(groups: Sequence[str], digests: Sequence[Sequence[int]]) -> Verdict:
    """The verdict on `digests`, a row for each rank with a number for each group.

    A rank is odd where more than half of all ranks agree on something else. Two ranks that differ
    name nobody; nor is anybody named while any group is without such a majority.
    """
    differing: list[str] = []
    odd: set[int] = set()
    split = False
    for group, column in zip(groups, zip(*digests, strict=True), strict=True):
        value, count = Counter(column).most_common(1)[0]
        if count == len(column):
            continue
        differing.append(group)
        split |= 2 * count <= len(column)
        odd |= {rank for rank, digest in enumerate(column) if digest != value}
    return Verdict(tuple(differing), () if split else tuple(sorted(odd)))
