"""Many prompts at once, and drafters without the loop: what collection and training ask for."""
