"""The launcher: real processes, one behaviour a file."""
