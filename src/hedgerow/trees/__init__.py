"""Trees over public grids: binning, candidates, random structures, losses, kernels, leaf updates, the ensemble."""
