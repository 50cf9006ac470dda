"""Whether a running server drafts, what comes of it, and what to change."""
