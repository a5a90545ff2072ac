"""Stand-alone libraries: the operators of models for programs outside of Python."""
