"""Models of tables: columns become numbers, standardised, and predictions come back in the units of the table."""
