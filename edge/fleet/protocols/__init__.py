"""What machines speak while they boot. `dhcp`, `tftp`, `ipxe` and `hpack` are pure; `http` and `grpc` have sockets."""
