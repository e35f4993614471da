"""`python -m kernax`, and the command `kernax`."""

import sys


def main() -> None:
    """The command line; without its packages, a word on how to get them."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit('the command line needs more packages: pip install ".[cli]" in a clone of the repository.')
    try:
        from kernax.cli import run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
