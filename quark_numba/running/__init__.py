"""Runs of models over data: readers of data, sessions, threads, clusters, and sums that are kept in a file."""
