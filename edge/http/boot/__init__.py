"""What a machine boots, over HTTP: scripts and boot programs (`scripts`), kernel and initrd (`osie`)."""
