"""The command line: `kernax` or `python -m kernax` (extra `cli`)."""
