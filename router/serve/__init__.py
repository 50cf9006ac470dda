"""`draftpick serve`: OpenAI's API over HTTP, every request through the arm that a policy picks."""
