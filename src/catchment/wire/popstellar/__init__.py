"""PoPStellar's JSON-RPC, its message object and its message data, as typed values."""
