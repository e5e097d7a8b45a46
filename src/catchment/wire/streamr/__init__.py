"""The Streamr protocols: control layer, stream messages and what is signed in them."""
