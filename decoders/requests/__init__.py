"""Reading a request's prompt."""
