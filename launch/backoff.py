"""How long to wait before what failed is tried again: not at all at first, then longer and longer."""


def wait_s(in_a_row: int, first_s: float, most_s: float) -> float:
    """The wait after `in_a_row` failures: none after the first, then `first_s`, doubling up to `most_s`."""
    if in_a_row <= 1:
        return 0.0
    doublings = min(in_a_row - 2, 64)  # a float holds it, and no cap is as high
    return min(most_s, first_s * 2.0**doublings)
