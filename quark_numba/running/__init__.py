"""Runs of models over data: reading, sessions, threads, clusters, and sums that are kept in a file."""
