"""What leaves the host while it trains: metrics and traces."""
