"""The operating system: files, memory, optional libraries. No torch here."""
