"""Console tables and files in the field's formats."""
