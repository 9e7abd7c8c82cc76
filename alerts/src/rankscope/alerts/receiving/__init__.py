"""What the receiver does with a delivery: who sent it, what it says, keeping it, enriching it, passing it on, acting on it."""
