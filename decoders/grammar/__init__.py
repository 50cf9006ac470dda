"""Answers that a grammar binds: what it takes next, for the loop, and the engine that knows."""
