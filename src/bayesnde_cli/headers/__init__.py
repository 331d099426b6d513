"""Headers of binary files: what they declare, read before any memory is taken for it. Nothing here is believed."""
