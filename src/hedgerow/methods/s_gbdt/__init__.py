"""S-GBDT."""
