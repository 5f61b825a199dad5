# SPDX-License-Identifier: Apache-2.0
"""Trees over public grids: binning, candidates, random structures, losses, kernels, leaf updates, the ensemble."""
