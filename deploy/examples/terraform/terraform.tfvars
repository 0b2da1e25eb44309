# The one file to edit: it has every address, MAC, disk and key of this example.
#
#   192.168.10.1     the host where tinkedge runs (the edge)
#   192.168.10.254   the machines' router and nameserver

machines = {
  rack1-1 = { mac = "00:00:5e:00:53:61", ip = "192.168.10.61", disk = "/dev/sda", os = "debian" }
  rack1-2 = { mac = "00:00:5e:00:53:62", ip = "192.168.10.62", disk = "/dev/nvme0n1", os = "debian" }
}

netmask     = "255.255.255.0"
gateway     = "192.168.10.254"
nameservers = ["192.168.10.254"]
edge        = "192.168.10.1:7080"
registry    = "192.168.10.1:7080" # with the actions of deploy/actions
ssh_keys    = ["ssh-ed25519 AAAA-your-key-here you@example.org"]

# For each value of `os`: its Template is in templates/, these are the Template's parameters.
systems = {
  debian = {
    image     = "http://192.168.10.1:7080/files/debian-12-amd64.raw.zst"
    sha256    = ""  # of that file, in hex; empty: not checked
    partition = "2" # of the root filesystem
  }
}
