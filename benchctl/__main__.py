"""`python -m benchctl`, for where the script is not on the path."""

from benchctl.cli import main

if __name__ == "__main__":
    main(prog_name="benchctl")
