# The image of Dataflow and Flink workers: Beam's SDK image with our pipeline, without torch, and with
# access to gs:// and s3://.
# PYTHON is the version that `cloze` runs with: what it sends is bytecode, which no other version can run.
ARG PYTHON=3.11
FROM apache/beam_python${PYTHON}_sdk:2.77.0

ENV PIP_NO_CACHE_DIR=1 PYTHONSAFEPATH=1

WORKDIR /opt/cloze
COPY constraints.txt pyproject.toml README.md ./
COPY artifacts artifacts
COPY cloze cloze
COPY flows flows
COPY model model
COPY pipeline pipeline
RUN pip install -c constraints.txt ".[pipeline,dataflow,s3]" \
    && useradd --create-home --uid 10001 cloze
# of Python's own library too, which every worker would otherwise compile
RUN python -P -m cloze.inspection.bytecode

USER 10001
# compile the kernels for cleaning and tokenising once, not in every worker
RUN python -P -c "from cloze.pipeline.text.cleaning import library as cleaning; \
    from cloze.pipeline.tokenizer.wordpiece import library as tokenising; assert cleaning() and tokenising()"
ENTRYPOINT ["/opt/apache/beam/boot"]
