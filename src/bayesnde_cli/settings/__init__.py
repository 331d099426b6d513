"""Every setting of every stage, declared once.

declare          how a setting is declared, and the messages for wrong values
stage_settings   the settings of each stage
resolve          flag > --set > environment > --config > --preset > default
presets/         named settings, one TOML file each
"""
