"""Logs of decisions: a line for each answer, written by the router, judged by `evaluate`."""
