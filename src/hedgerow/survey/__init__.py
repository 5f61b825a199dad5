# SPDX-License-Identifier: Apache-2.0
"""A survey: what a plan has to say of columns (bounds, classes, how many records), found by noisy sums and paid for."""
