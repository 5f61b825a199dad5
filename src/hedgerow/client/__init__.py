# SPDX-License-Identifier: Apache-2.0
"""The node: reads a site's rows, checks its owner's policy, answers queries with integer vectors."""
