"""Modules shared by several packages of rankscope. Every package may import this one; it imports none of them."""
