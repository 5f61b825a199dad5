# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model over sites, as a program."""
