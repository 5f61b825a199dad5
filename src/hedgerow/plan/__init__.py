# SPDX-License-Identifier: Apache-2.0
"""The plan: what all parties agree on before a run."""
