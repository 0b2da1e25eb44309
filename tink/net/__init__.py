"""Network connections: limits of our HTTPS listeners, addresses, proxies, and where this program may connect to."""
