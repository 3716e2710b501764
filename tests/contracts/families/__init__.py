"""Cases of operators that are not registered: one file per family, each with a list ``CASES``."""
