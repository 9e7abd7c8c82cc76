"""What several parts need, each under an exact name. Every part may import it; it imports none of them."""
