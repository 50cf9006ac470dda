"""Prediction alignment (Kim et al., BiLD, 3.5.1): train a drafter on what the target writes."""
