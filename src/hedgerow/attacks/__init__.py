# SPDX-License-Identifier: Apache-2.0
"""Attacks on releases and models, beside the bound that a ledger gives; see docs/evidence.md."""
