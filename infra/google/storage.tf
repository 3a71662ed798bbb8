resource "google_storage_bucket" "workspace" {
  name                        = "${var.project}-cloze"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # incomplete uploads; `cloze gc` removes unused artifacts
  lifecycle_rule {
    condition {
      age            = 7
      matches_prefix = ["temp/"]
    }
    action {
      type = "Delete"
    }
  }
}

resource "google_artifact_registry_repository" "images" {
  repository_id = "cloze"
  location      = var.region
  format        = "DOCKER"
}
