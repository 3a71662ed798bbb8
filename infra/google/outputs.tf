output "workspace" {
  description = "Workspace URL for machine files."
  value       = "gs://${google_storage_bucket.workspace.name}/runs"
}

output "images" {
  description = "Registry to push images to."
  value       = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}

output "beam_worker_account" {
  description = "Account for Dataflow's --service_account_email."
  value       = google_service_account.beam_worker.email
}
