"""Presets: one TOML file each."""
