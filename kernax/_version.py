"""The version, for files as well as for users."""

__version__ = "0.2.0"
