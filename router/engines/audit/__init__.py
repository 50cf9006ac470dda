"""Whether drafting changes a server's answers: the same requests with and without it."""
