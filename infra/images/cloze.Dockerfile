# One image for everything of ours but Beam workers; EXTRAS chooses what it can do:
#   pipeline,model,flows   cloze           everything on one machine
#   model                  cloze-trainer   torch with CUDA, DeepSpeed
#   pipeline,flows,kubernetes  cloze-flows  Prefect worker: prepares itself, trains in other pods
# A workspace or corpus behind gs:// or s3:// works with each of them.
# torch's own wheels bring CUDA. GCC is for what is compiled at run time: the CPU kernels, and on GPUs
# the launchers of Triton's kernels, without which layers are not compiled.
FROM python:3.11-slim-bookworm

ARG EXTRAS=pipeline,model,flows
ENV DS_BUILD_OPS=0 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false

# For flows that create Jobs; a cluster accepts a client one minor version away, and Debian's is of 2021.
COPY --from=registry.k8s.io/kubectl:v1.36.1 /bin/kubectl /usr/local/bin/kubectl

# ssh and pdsh only for hostfile launches; Kubernetes and Slurm start ranks themselves.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        gcc=4:12.2.* libc6-dev=2.36-* numactl=2.0.16-1 openssh-client=1:9.2p1-* pdsh=2.34-* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 cloze

WORKDIR /opt/cloze
COPY constraints.txt pyproject.toml README.md ./
COPY artifacts artifacts
COPY cloze cloze
COPY flows flows
COPY model model
COPY pipeline pipeline
# torch first and alone, so that pip never weighs two builds of it
RUN case ",$EXTRAS," in *,model,*) pip install -c constraints.txt torch ;; esac \
    && pip install -c constraints.txt ".[$EXTRAS,gs,s3]"

USER 10001
WORKDIR /home/cloze
# a new volume mounted there takes its owner from here; otherwise it belongs to root
RUN mkdir runs
ENTRYPOINT ["cloze"]
