"""Sending commands to a running Ray cluster, following them there, and fetching what came of them."""
