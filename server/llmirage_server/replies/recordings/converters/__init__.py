"""What other tools recorded, as recordings: one module for each kind of file."""
