"""Tools shared by all benchmarks: clock, memory, machine, grid, statistics, claims, pages."""
