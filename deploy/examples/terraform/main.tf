# Register machines with tinkedge, and install each: one Hardware and one Workflow for each entry of var.machines.

terraform {
  required_version = ">= 1.5"
  required_providers {
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = ">= 2.36"
    }
  }
}

provider "kubernetes" {
  config_path = var.kubeconfig
}

# The installation environment that machines netboot: the OSIE of deploy/osie.
resource "kubernetes_manifest" "osie" {
  manifest = {
    apiVersion = "tinkerbell.org/v1alpha2"
    kind       = "OSIE"
    metadata   = { name = "tinkedge", namespace = var.namespace }
    spec = {
      kernelUrl = "file:///var/lib/tinkedge/osie/tinkedge/kernel"
      initrdUrl = "file:///var/lib/tinkedge/osie/tinkedge/initrd"
    }
  }
}

# The Template of an operating system is the file templates/NAME.yaml.
resource "kubernetes_manifest" "template" {
  for_each = toset([for machine in var.machines : machine.os])

  manifest = merge(yamldecode(file("${var.templates}/${each.key}.yaml")), {
    metadata = { name = each.key, namespace = var.namespace }
  })
}

module "machine" {
  source   = "./machine"
  for_each = var.machines

  name        = each.key
  namespace   = var.namespace
  mac         = each.value.mac
  ip          = each.value.ip
  disk        = each.value.disk
  osie        = kubernetes_manifest.osie.manifest.metadata.name
  template    = each.value.os
  parameters  = merge({ registry = var.registry, edge = var.edge }, var.systems[each.value.os])
  netmask     = var.netmask
  gateway     = var.gateway
  nameservers = var.nameservers
  userdata = templatefile("${path.module}/user-data.yaml.tftpl", {
    ssh_keys = var.ssh_keys
    url      = "http://${var.edge}/phone-home/${each.key}"
  })
  install_timeout = var.install_timeout

  depends_on = [kubernetes_manifest.template]
}
