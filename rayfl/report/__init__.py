"""Tables and figures made of results."""
