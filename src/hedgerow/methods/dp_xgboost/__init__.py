"""DP-XGBoost."""
