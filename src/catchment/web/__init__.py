"""What a browser or a monitor may ask over HTTP."""
