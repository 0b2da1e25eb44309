variable "name" {
  description = "Name of the Hardware, and host name of the machine."
  type        = string
}

variable "namespace" {
  description = "Namespace of both objects."
  type        = string
  default     = "default"
}

variable "mac" {
  description = "MAC address of the network card that boots, with colons."
  type        = string

  validation {
    condition     = can(regex("^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$", var.mac))
    error_message = "The MAC address must have six pairs of hexadecimal digits with colons, such as 52:54:00:12:34:56."
  }
}

variable "ip" {
  description = "IPv4 address of that network card."
  type        = string
}

variable "netmask" {
  description = "Netmask of its network."
  type        = string
}

variable "gateway" {
  description = "Router of its network."
  type        = string
}

variable "nameservers" {
  description = "Addresses of nameservers."
  type        = list(string)
  default     = []
}

variable "disk" {
  description = "The disk to write, such as /dev/sda."
  type        = string
}

variable "osie" {
  description = "Name of the OSIE that the machine boots to be installed."
  type        = string
}

variable "template" {
  description = "Name of the Template that installs it."
  type        = string
}

variable "parameters" {
  description = "Parameters of the Template."
  type        = map(string)
  default     = {}
}

variable "userdata" {
  description = "User-data for cloud-init."
  type        = string
  default     = ""
}

variable "install_timeout" {
  description = "Seconds after which a Workflow that has not ended has failed."
  type        = number
  default     = 1800
}
