"""The client protocols of a boot. `dhcp`, `tftp` and `ipxe` are pure; `http` and `grpc` have sockets."""
