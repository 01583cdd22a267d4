"""Breaks a running job on purpose, by a plan that can be repeated."""
