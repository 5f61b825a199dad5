# SPDX-License-Identifier: Apache-2.0
"""Trees over public grids: binning, structures, sums, leaf values and the ensemble."""
