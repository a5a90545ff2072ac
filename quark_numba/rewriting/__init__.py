"""Models in cheaper forms, which give the same bits."""
