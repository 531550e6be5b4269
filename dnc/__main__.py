"""`python -m dnc` is the command line."""

from dnc.cli import main

main()
