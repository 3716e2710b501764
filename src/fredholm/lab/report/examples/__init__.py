"""Samples beside a model's answers: rows, texts, pictures, series, and fields."""
