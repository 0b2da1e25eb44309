# The meaning of the values in terraform.tfvars.

variable "kubeconfig" {
  description = "Kubeconfig of the API that tinkedge serves: DATA_DIR/kubeconfig of its host, or one of `tinkedge kubeconfig --user`."
  type        = string
  default     = "~/.kube/config"
}

variable "namespace" {
  description = "Namespace of all objects."
  type        = string
  default     = "default"
}

variable "machines" {
  description = "The machines, by name: MAC of the network card that boots, its address, the disk to write, the operating system."
  type = map(object({
    mac  = string
    ip   = string
    disk = string
    os   = string
  }))
}

variable "systems" {
  description = "Parameters of each operating system's Template."
  type        = map(map(string))
}

variable "templates" {
  description = "Directory with the Templates: templates/NAME.yaml for the operating system NAME."
  type        = string
  default     = "templates"
}

variable "edge" {
  description = "Address and port where machines reach tinkedge by HTTP."
  type        = string
}

variable "registry" {
  description = "Registry with the actions of deploy/actions."
  type        = string
}

variable "netmask" {
  description = "Netmask of the machines' network."
  type        = string
}

variable "gateway" {
  description = "Router of the machines' network."
  type        = string
}

variable "nameservers" {
  description = "Addresses of nameservers."
  type        = list(string)
  default     = []
}

variable "ssh_keys" {
  description = "Public keys that may log in to the installed machines."
  type        = list(string)
  default     = []
}

variable "install_timeout" {
  description = "Seconds after which a Workflow that has not ended has failed."
  type        = number
  default     = 1800
}
