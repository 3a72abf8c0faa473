"""Python modules in the order in which starts import them, as far as their sources tell."""
