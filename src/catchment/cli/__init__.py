"""The command line: noun-verb commands over the other rooms."""
