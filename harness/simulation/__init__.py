"""Runs that never happened: from costs and failures to the events of a run, or straight to its goodput."""
