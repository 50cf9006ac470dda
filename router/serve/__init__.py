"""`draftpick serve`: an OpenAI-compatible server, and a page to try it on."""
