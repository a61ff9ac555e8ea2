"""What every stage may use: errors, terminal, schedules, names of layers, limits."""
