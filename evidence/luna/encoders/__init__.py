"""Encoders of long texts: how well they predict hidden words, and how long they take on a CPU."""
