"""Models as files: targets, drafters, whether they fit each other and the memory."""
