"""The methods: each yields queries and receives noisy sums."""
