"""What one query takes from all points: maps, graphs, signed entries, the interactive figure."""
