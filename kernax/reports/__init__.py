"""A readable account of a fit, or of a model that has seen data."""

from kernax.reports._describe import report
from kernax.reports._report import Entry, Parameter, Report

__all__ = ["Entry", "Parameter", "Report", "report"]
