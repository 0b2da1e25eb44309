"""How packets of machines get onto the wire: DHCP's by a relay or as frames (`port`), datagrams of single machines
(`datagrams`); in which network namespace (`attachment`), to whom (`target`)."""
