"""The parts of FedProto: what its parties send, and what clients do with it."""
