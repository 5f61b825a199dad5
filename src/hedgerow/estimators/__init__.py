# SPDX-License-Identifier: Apache-2.0
"""Estimators in the manner of scikit-learn."""
