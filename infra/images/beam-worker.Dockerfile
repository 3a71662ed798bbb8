# What Dataflow and Flink start for each worker: Beam's own SDK image with our pipeline, without torch, and
# what a workspace or corpus behind gs:// or s3:// wants.
FROM apache/beam_python3.11_sdk:2.77.0

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

USER 10001
# the kernels of cleaning and tokenising, compiled here once instead of by every worker
RUN python -P -c "from pipeline.text.cleaning import library as cleaning; \
    from pipeline.tokenizer.wordpiece import library as tokenising; assert cleaning() and tokenising()"
ENTRYPOINT ["/opt/apache/beam/boot"]
