"""Secure aggregation as pure state machines: bytes in, bytes and the next state out."""
