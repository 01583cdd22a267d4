"""Which rank reads which file of a checkpoint: decided here, the same on every rank (pure)."""

from collections.abc import Mapping, Sequence


def readers(sizes: Mapping[str, int], ranks: Sequence[int]) -> dict[int, list[str]]:
    """The files that each of `ranks` reads, so that each file is read once and none reads much more.

    The largest file first, each to whoever has least so far; of equals, to the first of `ranks`.
    """
    assert ranks, "someone has to read"
    files: dict[int, list[str]] = {rank: [] for rank in ranks}
    load = dict.fromkeys(ranks, 0)
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = min(ranks, key=load.__getitem__)
        files[rank].append(name)
        load[rank] += sizes[name]
    return files
