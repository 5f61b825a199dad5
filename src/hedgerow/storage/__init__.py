"""Small durable databases: what a party wrote before it spoke is there after it died."""
