"""What the commands about Metal3's hosts do: Hardware kept in step, what is stored moved to v1beta1."""
