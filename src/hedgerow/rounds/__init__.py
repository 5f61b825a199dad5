"""Rounds: from a query to the slot of secure aggregation that sums it."""
