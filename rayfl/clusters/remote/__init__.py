"""Scripts that travel with a job and run on the cluster, where rayfl itself may be missing."""
