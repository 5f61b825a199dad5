"""Models: their file, plots and exports."""
