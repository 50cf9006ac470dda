"""What an arms file may say: the base of every recipe, its draft lengths and verifiers."""
