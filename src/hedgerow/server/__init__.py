# SPDX-License-Identifier: Apache-2.0
"""The coordinator: runs a program over an engine, adds noise, keeps the ledger, writes the model."""
