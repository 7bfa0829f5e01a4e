"""Parties in Ray actors. The only place that imports Ray's core."""
