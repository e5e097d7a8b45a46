"""Sockets, threads and signals: everything that touches the outside on behalf of the sessions."""
