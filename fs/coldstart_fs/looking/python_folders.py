"""Where Python's modules are installed in an image."""

PACKAGES = rb"(?:site|dist)-packages"
INSTALLATION = PACKAGES + rb"|lib(?:64)?/python\d+(?:\.\d+)?"
"""The end of the path of a folder that modules are imported from by one name."""
