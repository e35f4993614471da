"""The error of tables."""


class TableError(ValueError):
    """A table that cannot be used as asked. The message names the file, the column and the lines, and says what to do."""
