# Only the daemon: no compiler, no root, no shell needed. Configuration: /etc/sidecar/sidecar.yaml; state: a volume at
# /var/lib/sidecar.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/consumer-sidecar
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY sidecar ./sidecar
COPY pyspark_sidecar ./pyspark_sidecar
COPY examples ./examples
COPY docs/man ./docs/man
# For RocketMQ: --build-arg EXTRAS=[rocketmq]; for delayed messages: [delay]; for sink.spark and sink.delta: [delta]; for a landing zone in S3: [s3]
ARG EXTRAS=
RUN PIP_CONSTRAINT=constraints.txt /opt/consumer-sidecar/bin/python -m pip install --quiet ".$EXTRAS"

FROM python:3.12-slim
# For the jobs on Spark: --build-arg EXTRAS=[spark] --build-arg PACKAGES=openjdk-21-jre-headless
ARG PACKAGES=
RUN [ -z "$PACKAGES" ] || { apt-get update && apt-get install -y --no-install-recommends $PACKAGES && rm -r /var/lib/apt/lists/*; }
COPY --from=build /opt/consumer-sidecar /opt/consumer-sidecar
# A named volume inherits the owner of the folder that it covers.
RUN install --directory --mode=0700 --owner=65532 --group=65532 /var/lib/sidecar
ENV PATH=/opt/consumer-sidecar/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
STOPSIGNAL SIGTERM
# The default admin.listen; change both together. http.client uses no proxy of the environment.
HEALTHCHECK --interval=5s --timeout=3s --start-period=40s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1:9464', timeout=2); c.request('GET', '/livez'); exit(c.getresponse().status != 200)"]
ENTRYPOINT ["sidecar"]
CMD ["run", "-c", "/etc/sidecar/sidecar.yaml"]
