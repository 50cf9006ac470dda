"""`draftpick theory`: how far to draft, computed from acceptance and costs."""
