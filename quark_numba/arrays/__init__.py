"""Arrays that come into a call: checks of arguments, dask arrays chunk by chunk, labels of xarray, packed bytes."""
