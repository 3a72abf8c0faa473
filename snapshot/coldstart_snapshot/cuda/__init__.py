"""GPU state of processes: moved into host memory and back, what speaks against that, and where to."""
