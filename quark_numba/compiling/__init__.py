"""The lowest floor: it compiles Python functions to kernels, once for all threads, and keeps them in a cache on disk."""
