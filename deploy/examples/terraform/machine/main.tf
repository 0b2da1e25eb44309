# A machine: its Hardware, the Workflow that installs it, and the wait for its end.

terraform {
  required_version = ">= 1.5"
  required_providers {
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = ">= 2.36"
    }
  }
}

resource "kubernetes_manifest" "hardware" {
  manifest = {
    apiVersion = "tinkerbell.org/v1alpha2"
    kind       = "Hardware"
    metadata   = { name = var.name, namespace = var.namespace }
    spec = {
      networkInterfaces = {
        (lower(var.mac)) = {
          dhcp = {
            ip          = var.ip
            netmask     = var.netmask
            gateway     = var.gateway
            hostname    = var.name
            nameservers = var.nameservers
          }
        }
      }
      osie           = { name = var.osie }
      storageDevices = [var.disk]
      instance       = { userdata = var.userdata }
    }
  }
}

resource "kubernetes_manifest" "workflow" {
  manifest = {
    apiVersion = "tinkerbell.org/v1alpha2"
    kind       = "Workflow"
    metadata   = { name = "install-${var.name}", namespace = var.namespace }
    spec = {
      hardwareRef    = { name = kubernetes_manifest.hardware.manifest.metadata.name }
      templateRef    = { name = var.template }
      templateParams = var.parameters
      timeout        = var.install_timeout
    }
  }

  # Wait for any end: the data source below rejects all but Succeeded, without waiting for the timeout.
  wait {
    fields = { "status.state" = "^(Succeeded|Failed|Canceled)$" }
  }

  timeouts {
    create = "${var.install_timeout + 300}s"
    update = "${var.install_timeout + 300}s"
    delete = "10m"
  }

  # A Workflow that has begun can't be changed, and a changed parameter must not install a machine again
  # unless you run `terraform apply -replace`.
  lifecycle {
    ignore_changes = [manifest]
  }
}

data "kubernetes_resource" "workflow" {
  api_version = "tinkerbell.org/v1alpha2"
  kind        = "Workflow"

  metadata {
    name      = kubernetes_manifest.workflow.manifest.metadata.name
    namespace = var.namespace
  }

  depends_on = [kubernetes_manifest.workflow]

  lifecycle {
    postcondition {
      condition     = self.object.status.state == "Succeeded"
      error_message = "Workflow install-${var.name}: ${self.object.status.message}. To install the machine again: terraform apply -replace='module.machine[\"${var.name}\"].kubernetes_manifest.workflow'"
    }
  }
}
