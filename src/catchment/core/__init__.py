"""Accept, commit, deliver: the broker without its sockets."""
