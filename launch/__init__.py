"""Starts, watches and restarts a training job on torch's elastic agent."""
