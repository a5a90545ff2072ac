"""The compilation of Python functions to kernels, once for all threads, and the cache of kernels on disk."""
