# SPDX-License-Identifier: Apache-2.0
"""What methods are made of: settings, candidates, the order of features, the steps of a program."""
