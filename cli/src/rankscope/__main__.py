"""``python -m rankscope``: the same as the ``rankscope`` command."""

from rankscope.cli.start import main

if __name__ == "__main__":
    main()
