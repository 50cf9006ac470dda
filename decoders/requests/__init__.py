"""Parts of every answer: the reading of its prompt, and the grammar that it must keep to."""
