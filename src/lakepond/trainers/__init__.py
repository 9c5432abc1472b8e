"""One file, one algorithm, read top to bottom; none is imported until it is asked for."""
