"""The client protocols of a boot. `dhcp`, `tftp`, `ipxe` and `hpack` are pure; `http` and `grpc` have sockets."""
