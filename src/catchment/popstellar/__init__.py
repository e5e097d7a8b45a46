"""PoPStellar's state: what messages on channels add up to, as a fold over the log."""
