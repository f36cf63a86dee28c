"""Run the command `regard` as `python -m regard.cli`."""

from regard.cli import main

if __name__ == "__main__":
    main()
