"""The operating system: files, memory, optional libraries, tracing. No torch here."""
