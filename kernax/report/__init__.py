"""Readable accounts of fits and of models that have seen data."""

from kernax.report._condition import condition_estimate
from kernax.report._describe import report
from kernax.report._report import Entry, Parameter, Report

__all__ = ["Entry", "Parameter", "Report", "condition_estimate", "report"]
