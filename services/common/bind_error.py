"""An address from the settings that cannot be listened on: the service ends with one line and without a traceback."""


class BindError(OSError):
    """The address is taken or not this machine's; the message names the setting."""
