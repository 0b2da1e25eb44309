output "machines" {
  description = "The state of each machine's Workflow."
  value       = { for name, machine in module.machine : name => machine.state }
}
