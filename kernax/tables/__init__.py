"""Models of tables: columns become numbers, standardised, and predictions come back in the units of the table."""

from kernax.expressions import KernelExpressionError, parse_kernel
from kernax.tables._column import Column
from kernax.tables._compare import Comparison, compare_table
from kernax.tables._forecast import TableForecast, forecast_table
from kernax.tables._frames import fit_frame, frame_schema
from kernax.tables._many import ManyTableFits, fit_table_many
from kernax.tables._read import Table, TableError, read_table
from kernax.tables._solvers import parse_solver
from kernax.tables._table_fit import TableFit, fit_table
from kernax.tables._write import write_table

__all__ = [
    "Column",
    "Comparison",
    "KernelExpressionError",
    "ManyTableFits",
    "Table",
    "TableError",
    "TableFit",
    "TableForecast",
    "compare_table",
    "fit_frame",
    "fit_table",
    "fit_table_many",
    "forecast_table",
    "frame_schema",
    "parse_kernel",
    "parse_solver",
    "read_table",
    "write_table",
]
