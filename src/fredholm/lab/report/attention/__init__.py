"""The quality of attention maps."""
