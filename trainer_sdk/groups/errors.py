"""Why a wait for peers ended without its result."""


class Interrupted(Exception):  # noqa: N818 - it is an order to park, not an error
    """Somebody asked this rank to stop waiting and park. The operation may still be pending: abandon its group."""


class PeerLost(Exception):  # noqa: N818 - names what happened to the peer
    """A connection to a peer broke or could not be made; the message says what the transport reported."""
