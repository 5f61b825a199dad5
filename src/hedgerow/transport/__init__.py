# SPDX-License-Identifier: Apache-2.0
"""Identities, rosters, and the network: engines, and sealed envelopes for carriers that need no trust."""
