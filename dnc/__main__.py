"""The `dnc` command; `python -m dnc` is the same.

Guaranteed: Ctrl-C while the command line is still being read is a line and exit code 130, as later on
(`dnc.cli`, whose imports take a moment).
"""

import sys


def main() -> None:
    """The entry point."""
    try:
        from dnc.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
