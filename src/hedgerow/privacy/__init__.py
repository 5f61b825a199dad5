# SPDX-License-Identifier: Apache-2.0
"""Privacy: events, the ledger, accountants, calibration and exact discrete noise; it knows no tree and no record."""
