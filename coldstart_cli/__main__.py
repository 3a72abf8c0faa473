"""`python -m coldstart_cli` is `coldstart`."""

from coldstart_cli.entry import main

main()
