# SPDX-License-Identifier: Apache-2.0
"""Losses as tables of integers."""
