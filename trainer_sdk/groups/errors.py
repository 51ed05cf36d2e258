"""Why a wait for peers ended without its result."""


class WaitBroken(Exception):  # noqa: N818 - what ends a rank's part in an epoch is seldom an error of its own
    """The rank should park. The operation may still be pending: abandon its group."""


class Interrupted(WaitBroken):
    """Somebody asked this rank to stop waiting."""


class PeerLost(WaitBroken):
    """A connection to a peer broke or could not be made; the message says what the transport reported."""
