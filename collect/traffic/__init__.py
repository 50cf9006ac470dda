"""Prompts and answers that another engine logged: read, put into tokens, and replayed along, so that
no target and no GPU is needed to say what drafting would have gained."""
