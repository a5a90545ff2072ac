"""Keys of the dispatch table: the operations."""

# To count the thresholds that x reaches, or to take the nearest value.
COUNT, NEAREST = OPERATIONS = "count", "nearest"
