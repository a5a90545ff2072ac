"""Stand-alone libraries: the operators of models for programs without Python."""
