"""beartype as the tests use it: an int is a float, as PEP 484 has it."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
