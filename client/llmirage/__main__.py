"""`python -m llmirage` is the `llmirage` command."""

from llmirage_client.cli import main

main(prog_name="llmirage")
