variable "project" {
  description = "Google Cloud project for all resources."
  type        = string
}

variable "region" {
  description = "Region of the bucket, the registry, Dataflow and the cluster."
  type        = string
  default     = "us-central1"
}

variable "gpu_zone" {
  description = "Zone of the GPU nodes; it must offer gpu_machine_type."
  type        = string
  default     = "us-central1-a"
}

variable "gpu_machine_type" {
  description = "Machine type of a GPU node; the default has 8 H100 GPUs."
  type        = string
  default     = "a3-highgpu-8g"
}

variable "gpu_type" {
  description = "Accelerator of that machine type."
  type        = string
  default     = "nvidia-h100-80gb"
}

variable "gpus_per_node" {
  description = "GPUs of that machine type."
  type        = number
  default     = 8
}

variable "max_gpu_nodes" {
  description = "Maximum number of GPU nodes; idle nodes are released."
  type        = number
  default     = 2
}
