"""What drafting would gain on the logs of an engine: replayed and reported."""
