"""Stands beside a script that imports it."""
