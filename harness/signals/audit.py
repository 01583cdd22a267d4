"""What an audit of gradients comes to. Decides, from numbers that several ranks made of one batch.

Each rank makes the gradient of the next rank's batch once more. Where the two differ, a third rank
makes it too, and the one that stands alone is odd: the rank whose gradient it was, if a bit flipped
there; the one that audited it, if it was that.
"""

from collections.abc import Sequence

from harness.signals.majority import Verdict, judge

Numbers = Sequence[int]
"""One of each group, as one rank made it."""


def audited(auditor: int, world_size: int) -> int:
    """Whose batch `auditor` computes."""
    return (auditor + 1) % world_size


def arbiter(auditor: int, world_size: int) -> int:
    """Who else computes that batch, where the two differ: neither of them."""
    return (auditor - 1) % world_size


def differing(own: Sequence[Numbers], theirs: Sequence[Numbers]) -> list[int]:
    """The auditors that got something else; `theirs` is by auditor, `own` by whose gradient it is."""
    size = len(own)
    return [rank for rank in range(size) if list(theirs[rank]) != list(own[audited(rank, size)])]


def settle(
    groups: Sequence[str],
    own: Sequence[Numbers],
    theirs: Sequence[Numbers],
    third: Sequence[Numbers] | None,
) -> Verdict:
    """The verdict of all pairs; `third` is by arbiter, and None where there is no third rank."""
    size = len(own)
    found: list[str] = []
    odd: set[int] = set()
    split = False
    for auditor in differing(own, theirs):
        ranks = [audited(auditor, size), auditor]
        rows = [own[ranks[0]], theirs[auditor]]
        if third is not None:
            ranks.append(arbiter(auditor, size))
            rows.append(third[ranks[-1]])
        verdict = judge(groups, rows)
        found += [group for group in verdict.groups if group not in found]
        odd |= {ranks[place] for place in verdict.ranks}
        split |= verdict.is_ambiguous
    return Verdict(tuple(found), () if split else tuple(sorted(odd)))
