"""What goes wrong with a router."""


class RouterError(RuntimeError):
    """A router of the user's own raised, or answered with something that is not one of the instances."""
