"""Reports: a summary of a fit, or of a conditioned model, as text, as HTML and as plain data."""

from kernax.reports._condition import condition_estimate
from kernax.reports._describe import report
from kernax.reports._page import Picture, Table
from kernax.reports._report import Entry, Parameter, Report
from kernax.reports._sentences import describe

__all__ = ["Entry", "Parameter", "Picture", "Report", "Table", "condition_estimate", "describe", "report"]
