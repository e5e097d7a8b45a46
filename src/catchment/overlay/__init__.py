"""Streamr's peer-to-peer network: trackers, nodes and storage nodes, without sockets or clocks.

The broker's network layer and the simulator run the same code (DESIGN.md, "The rooms").
"""
