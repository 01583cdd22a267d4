"""Checkpoints: the state of a run, durable and verified."""
