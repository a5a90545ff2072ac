"""Arrays as arguments of calls: checks, dask arrays chunk by chunk, labels of xarray, packed bytes."""
