# SPDX-License-Identifier: Apache-2.0
"""Models: their file, plots and exports."""
