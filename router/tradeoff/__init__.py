"""Quality against latency: a method's threshold is swept, each value a point of its curve."""
