"""Training programs: generators that yield queries and receive noisy sums."""
