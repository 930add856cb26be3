"""What commands do, a module each: imported when the command is carried out, not for its help."""
