"""How the tests check annotations: an int passes for a float, as in Python's own numeric tower."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
