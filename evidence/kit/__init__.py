"""What every benchmark uses: clock, memory, machine, grid, statistics, claims, pages."""
