"""The sections of the page: each takes the report's data and gives its part, or None if there is nothing to show."""
