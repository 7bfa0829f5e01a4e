"""The parts of H-SFP: what its parties send, and how features are drawn from it."""
