"""What drafting would gain on the logs of an engine: replayed, reported, drawn."""
