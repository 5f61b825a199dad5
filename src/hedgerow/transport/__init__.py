"""Engines: they deliver bytes or queries to nodes and return what came back by the deadline."""
