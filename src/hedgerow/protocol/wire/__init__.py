"""Beside the messages of a run: what a stream and a monitor say, and why a stream ends. Needs protobuf."""
