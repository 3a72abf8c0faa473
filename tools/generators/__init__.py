"""Completions and man pages from the command tree."""
