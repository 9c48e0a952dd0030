"""Load for a server in a process of its own, and what has to be true under it."""
