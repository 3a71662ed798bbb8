# One account for each role, with minimal permissions.

resource "google_service_account" "beam_worker" {
  account_id   = "cloze-beam-worker"
  display_name = "Cloze: Dataflow workers"
}

resource "google_service_account" "trainer" {
  account_id   = "cloze-trainer"
  display_name = "Cloze: GPU nodes and trainer pods"
}

resource "google_project_iam_member" "beam_worker" {
  project = var.project
  role    = "roles/dataflow.worker"
  member  = "serviceAccount:${google_service_account.beam_worker.email}"
}

resource "google_project_iam_member" "trainer_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = "serviceAccount:${google_service_account.trainer.email}"
}

resource "google_project_iam_member" "trainer_metrics" {
  project = var.project
  role    = "roles/monitoring.metricWriter"
  member  = "serviceAccount:${google_service_account.trainer.email}"
}

locals {
  accounts = {
    beam_worker = google_service_account.beam_worker.email
    trainer     = google_service_account.trainer.email
  }
}

resource "google_storage_bucket_iam_member" "workspace" {
  for_each = local.accounts
  bucket   = google_storage_bucket.workspace.name
  role     = "roles/storage.objectUser"
  member   = "serviceAccount:${each.value}"
}

resource "google_artifact_registry_repository_iam_member" "images" {
  for_each   = local.accounts
  repository = google_artifact_registry_repository.images.name
  location   = var.region
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${each.value}"
}
