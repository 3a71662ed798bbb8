# The image for everything except Beam workers; EXTRAS selects its contents:
#   pipeline,model,flows   cloze           everything on one machine
#   model                  cloze-trainer   torch with CUDA, DeepSpeed
#   pipeline,model,flows,kubernetes  cloze-flows  Prefect worker that prepares corpora, and trains in other
#                           pods; torch, which needs no CUDA here, checks task files
# All of them can access gs:// and s3://.
# CUDA comes with torch's wheels. GCC compiles the CPU kernels at run time and, on GPUs, the launchers
# of Triton kernels, which torch.compile needs.
FROM python:3.11-slim-bookworm

ARG EXTRAS=pipeline,model,flows
# of a build of torch without CUDA, for instance
ARG PIP_EXTRA_INDEX_URL=
ENV DS_BUILD_OPS=0 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false

# For flows that create Jobs; a cluster accepts clients within one minor version, and Debian's is from 2021.
COPY --from=registry.k8s.io/kubectl:v1.36.1 /bin/kubectl /usr/local/bin/kubectl

# ssh and pdsh are only for hostfile launches; on Kubernetes and Slurm, ranks are started without them.
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
# torch first and alone, so that pip does not consider two builds of it
RUN case ",$EXTRAS," in *,model,*) pip install -c constraints.txt torch ;; esac \
    && pip install -c constraints.txt ".[$EXTRAS,gs,s3]"
# pip has compiled the packages; the image of Python has no bytecode of its own library, and the user
# below may not write it
RUN python -P -m cloze.inspection.bytecode

USER 10001
WORKDIR /home/cloze
# a new volume mounted here inherits this owner instead of root
RUN mkdir runs
ENTRYPOINT ["cloze"]
