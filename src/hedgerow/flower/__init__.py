"""Hedgerow on Flower: what the app that Flower carries calls in the Hedgerow that is installed. See docs/flower.md."""
