"""How files are sent over HTTP: the head (`response_head`, `ranges`), and the body in threads (`body`, `sendfile`)."""
