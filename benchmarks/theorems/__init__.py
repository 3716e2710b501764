"""Theorems 4 and 5 measured, and the witnesses that make Theorems 1 to 3 strict: ``python -m
benchmarks.theorems``.
"""
