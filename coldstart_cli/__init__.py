"""Kernel and shell of coldstart: errors, configuration, files, programs, printer, command tree."""
