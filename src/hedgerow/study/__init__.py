"""A study's parties, from one invitation file each to the roster that all of them pin."""
