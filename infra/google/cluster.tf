resource "google_container_cluster" "trainers" {
  name                     = "cloze"
  location                 = var.gpu_zone
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = false

  # without workload identity, pods use their node's account, which can do little more than read and
  # write the bucket

  addons_config {
    gcp_filestore_csi_driver_config {
      enabled = true # the shared workspace claim
    }
  }
}

resource "google_container_node_pool" "general" {
  name     = "general"
  cluster  = google_container_cluster.trainers.id
  location = var.gpu_zone

  initial_node_count = 1

  node_config {
    machine_type    = "e2-standard-8"
    service_account = google_service_account.trainer.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
  }
}

resource "google_container_node_pool" "gpu" {
  name     = "gpu"
  cluster  = google_container_cluster.trainers.id
  location = var.gpu_zone

  autoscaling {
    min_node_count = 0 # no cost unless something is training
    max_node_count = var.max_gpu_nodes
  }

  node_config {
    machine_type    = var.gpu_machine_type
    spot            = true # on pre-emption, training saves a checkpoint and resumes
    service_account = google_service_account.trainer.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    guest_accelerator {
      type  = var.gpu_type
      count = var.gpus_per_node
      gpu_driver_installation_config {
        gpu_driver_version = "DEFAULT"
      }
    }
  }
}
