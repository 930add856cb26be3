"""The one error of this package."""


class DeploymentError(ValueError):
    """What was asked for cannot work; the message is written for the user and names what would."""
