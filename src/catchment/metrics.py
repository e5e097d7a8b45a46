"""Every counter, gauge and histogram of the node, declared once.

Names are `catchment_<subsystem>_<what>_<unit>`; labels are protocol, version and reason, never a stream or a client:
their number is bounded by what we speak, not by who talks to us.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()

ACCEPTED = Counter(
    "catchment_broker_messages_accepted_total",
    "Messages committed to the log.",
    ["protocol", "version"],
    registry=REGISTRY,
)
REFUSED = Counter(
    "catchment_broker_messages_refused_total",
    "Messages refused, by reason.",
    ["protocol", "version", "reason"],
    registry=REGISTRY,
)
DUPLICATES = Counter(
    "catchment_broker_messages_duplicate_total",
    "Messages the log already had.",
    ["protocol", "version"],
    registry=REGISTRY,
)
UNNOTED = Counter(
    "catchment_broker_notes_dropped_total",
    "Refusals and repeats that were answered but not noted in the log because their sender was over its quota.",
    registry=REGISTRY,
)
REQUESTS_INVALID = Counter(
    "catchment_session_requests_invalid_total",
    "Frames answered with the protocol's error before they became a message, by error code or a word of what is wrong.",
    ["protocol", "reason"],
    registry=REGISTRY,
)
HIGH_S = Counter(
    "catchment_broker_signatures_high_s_total",
    "Valid signatures whose s lies in the upper half of the group order, which usual signers never make.",
    registry=REGISTRY,
)
LOGINS = Counter(
    "catchment_access_logins_total",
    "Logins over REST, by how they were tried and ended: challenge_ok, apikey_refused and so on.",
    ["reason"],
    registry=REGISTRY,
)
DELIVERIES = Counter(
    "catchment_broker_deliveries_total",
    "Messages handed to subscribers' connections.",
    registry=REGISTRY,
)
FORWARDED = Counter(
    "catchment_network_forwarded_total",
    "Messages handed to neighbours in the Streamr network.",
    registry=REGISTRY,
)
INSTRUCTIONS = Counter(
    "catchment_network_instructions_total",
    "Instructions this tracker has sent to nodes of the Streamr network.",
    registry=REGISTRY,
)
RESENT = Counter(
    "catchment_broker_resent_total",
    "Messages handed out in resends.",
    registry=REGISTRY,
)
COMMIT_SECONDS = Histogram(
    "catchment_store_commit_seconds",
    "Time of one group commit.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2),
    registry=REGISTRY,
)
COMMIT_ENTRIES = Histogram(
    "catchment_store_commit_entries",
    "Entries in one group commit.",
    buckets=(1, 4, 16, 64, 256, 1024, 4096),
    registry=REGISTRY,
)
STORE_FAILURES = Counter(
    "catchment_store_failures_total",
    "Group commits that failed, by reason.",
    ["reason"],
    registry=REGISTRY,
)
NEXT_OFFSET = Gauge("catchment_store_next_offset", "The offset the next entry will get.", registry=REGISTRY)
SEALED_OFFSET = Gauge(
    "catchment_store_sealed_offset", "The last offset in the raw table, -1 for none.", registry=REGISTRY
)
CONNECTIONS = Gauge("catchment_net_connections", "Open connections, by protocol.", ["protocol"], registry=REGISTRY)
SLOW_CUT = Counter(
    "catchment_net_slow_consumers_cut_total",
    "Connections closed because their peer stopped reading and its queue reached the byte limit.",
    ["protocol"],
    registry=REGISTRY,
)
CERTIFICATE_END = Gauge(
    "catchment_net_certificate_end_seconds",
    "When the node's TLS certificate ends, in seconds since 1970; 0 without TLS.",
    registry=REGISTRY,
)
LOG_DROPPED = Counter(
    "catchment_log_records_dropped_total",
    "Log records left out because their place in the code had logged too many in a short time.",
    registry=REGISTRY,
)


def exposition() -> bytes:
    """All of it in Prometheus' text format."""
    return generate_latest(REGISTRY)
