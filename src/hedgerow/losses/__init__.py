"""Losses as tables of integers."""
