"""The command line: one thin file per command; options become a config, exceptions become messages."""
