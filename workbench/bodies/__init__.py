"""Tile bodies for GPUs, and what a compiler makes of them."""
