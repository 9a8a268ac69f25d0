"""`python -m ondes`."""

from ondes.cli import main

if __name__ == "__main__":
    main()
