output "state" {
  description = "State of the machine's Workflow."
  value       = data.kubernetes_resource.workflow.object.status.state
}
