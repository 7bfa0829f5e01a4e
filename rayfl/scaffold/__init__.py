"""A method of one's own: template modules, checked like all others, and what renames them."""

PARENTS = ("fedavg", "splitfed_v1", "hsfl")
"""Methods that there is a template of: ``like_<method>.py``."""
