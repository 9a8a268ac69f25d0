"""Learning on many machines: the rounds of one run, computed by the workers of a Dask cluster."""
