"""How many ranks there shall be, and whether this machine lets a process lead as many."""

import resource

from launch.flags import UsageError

MOST_RANKS = 4096
"""Of one node; more than that is a slip of the keyboard, and would take the machine down."""
_FILES, _FILES_PER_RANK = 64, 4
"""A launcher has two dozen files open and a rank a few for each of its peers; once none is left,
connecting is tried again for minutes."""


def ranks(asked: str) -> int:
    """What `--nproc-per-node` means. Raises `UsageError`, also where a process may open too few files."""
    from torch.distributed.run import determine_local_world_size

    try:
        count: int = determine_local_world_size(asked)
    except ValueError as error:
        raise UsageError(
            f"--nproc-per-node {asked}: {str(error).rstrip('.')}; give a number, auto, cpu or gpu"
        ) from None
    if not 1 <= count <= MOST_RANKS:
        raise UsageError(f"--nproc-per-node {count} is no number of ranks from 1 to {MOST_RANKS}")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < files_for(count):
        raise UsageError(
            f"a process may open {files} files here, and {count} ranks need {files_for(count)}:"
            f" raise that with `ulimit -n {files_for(count)}`"
        )
    return count


def files_for(count: int) -> int:
    """Files that each process of a launch with `count` ranks must be allowed to open."""
    return _FILES + _FILES_PER_RANK * count
