"""The parts of BESplit, each small enough to be tested alone."""
