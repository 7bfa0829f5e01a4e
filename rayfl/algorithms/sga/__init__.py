"""The parts of FedSGA, each small enough to be tested alone; the method is ``rayfl.algorithms.fedsga``."""
