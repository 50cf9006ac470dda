"""The Spec-Bench protocol: paired and interleaved, one table of speed-ups per task and arm."""
