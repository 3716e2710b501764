"""Cases of operators that are not registered by name: one file a family, each with a list
``CASES``.
"""
