"""Arms, and draft lengths by load, in the words of other engines."""
