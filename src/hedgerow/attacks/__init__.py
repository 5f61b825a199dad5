# SPDX-License-Identifier: Apache-2.0
"""What an adversary can compute from releases and models, and how much of it a ledger allows; see docs/attack.md."""
