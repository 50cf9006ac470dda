"""Prediction alignment (seed 004, section 3.5.1): train a drafter on what the target writes."""
