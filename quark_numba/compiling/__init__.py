"""The ground floor: how Python functions become compiled kernels, once, for all threads, with a cache on disk."""
