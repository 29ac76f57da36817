"""From a user's graphs to the library's own values."""
