"""What one query takes from all points: maps, graphs, the interactive figure."""
