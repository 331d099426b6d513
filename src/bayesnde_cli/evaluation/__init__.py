"""How good densities are: figures from arrays. Nothing here reads a file or prints."""
